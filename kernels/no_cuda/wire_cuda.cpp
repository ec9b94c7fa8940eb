#include "kernels/no_cuda/unavailable.h"
#include "kernels/wire.h"

namespace sluiceway::cuda {

void pack(WireFormat, std::span<const float>, std::span<std::byte>, ScanResult*, StreamRef) {
  throw_unavailable("pack");
}

void unpack(WireFormat, std::span<const std::byte>, std::span<float>, StreamRef) {
  throw_unavailable("unpack");
}

}  // namespace sluiceway::cuda
