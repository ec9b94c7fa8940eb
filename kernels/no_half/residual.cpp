#include "kernels/residual.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void mean_squares(const AnyMatrix&, const MeansPass&, float, StreamRef) {
  throw_no_half("mean_squares");
}

void residual_clip(ResidualVerdict*, const AnyMatrix&, const FactoredRoots&, double, double,
                   StreamRef) {
  throw_no_half("residual_clip");
}

void residual_apply(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&,
                    const FactoredRoots&, const WeightUpdate&, const ResidualVerdict*, StreamRef) {
  throw_no_half("residual_apply");
}

void residual_sign(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&,
                   const WeightUpdate&, const ResidualVerdict*, StreamRef) {
  throw_no_half("residual_sign");
}

}  // namespace sluiceway::cuda
