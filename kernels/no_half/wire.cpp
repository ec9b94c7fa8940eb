#include "kernels/wire.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void pack(WireFormat, std::span<const float>, std::span<std::byte>, ScanResult*, StreamRef) {
  throw_no_half("pack");
}

void unpack(WireFormat, std::span<const std::byte>, std::span<float>, StreamRef) {
  throw_no_half("unpack");
}

}  // namespace sluiceway::cuda
