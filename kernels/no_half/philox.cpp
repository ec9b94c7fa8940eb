#include "kernels/philox.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void fill_bits(const NoiseKey&, std::uint64_t, std::span<std::uint32_t>, StreamRef) {
  throw_no_half("fill_bits");
}

void fill_bits(const NoiseKey&, std::uint64_t, std::span<std::uint16_t>, StreamRef) {
  throw_no_half("fill_bits");
}

}  // namespace sluiceway::cuda
