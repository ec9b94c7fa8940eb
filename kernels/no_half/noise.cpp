#include "kernels/noise.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void draw_noise(std::span<float>, const NoiseKey&, std::uint64_t, NoiseFamily, StreamRef) {
  throw_no_half("draw_noise");
}

}  // namespace sluiceway::cuda
