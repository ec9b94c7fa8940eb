#include "kernels/perturb.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void perturb(std::span<const std::byte>, WeightForm, std::span<std::byte>, std::span<std::byte>,
             DType, const Theta&, const NoiseKey&, float, StreamRef) {
  throw_no_half("perturb");
}

void materialise(std::span<const std::byte>, WeightForm, std::span<std::byte>, DType, const Theta&,
                 Rounding, const NoiseKey&, StreamRef) {
  throw_no_half("materialise");
}

}  // namespace sluiceway::cuda
