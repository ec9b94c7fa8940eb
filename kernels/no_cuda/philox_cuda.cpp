#include "kernels/no_cuda/unavailable.h"
#include "kernels/philox.h"

namespace sluiceway::cuda {

void fill_bits(const NoiseKey&, std::uint64_t, std::span<std::uint32_t>, StreamRef) {
  throw_unavailable("fill_bits");
}

void fill_bits(const NoiseKey&, std::uint64_t, std::span<std::uint16_t>, StreamRef) {
  throw_unavailable("fill_bits");
}

}  // namespace sluiceway::cuda
