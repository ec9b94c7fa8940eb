#include "kernels/residual.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void mean_squares(const AnyMatrix&, std::span<float>, std::span<float>, float, StreamRef) {
  throw_no_half("mean_squares");
}

void residual_rms(double*, const AnyMatrix&, const FactoredRoots&, StreamRef) {
  throw_no_half("residual_rms");
}

void residual_apply(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&,
                    const FactoredRoots&, const WeightUpdate&, StreamRef) {
  throw_no_half("residual_apply");
}

void residual_sign(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&,
                   const WeightUpdate&, StreamRef) {
  throw_no_half("residual_sign");
}

}  // namespace sluiceway::cuda
