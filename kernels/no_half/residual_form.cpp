#include "kernels/residual_form.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void residual_form(const AnyMatrix&, MatrixView<float>, const SparseRows&, const SparseRows&,
                   const MeansPass&, std::span<float>, StreamRef) {
  throw_no_half("residual_form");
}
void residual_form(const AnyMatrix&, MatrixView<float>, const BlockRows&, const BlockRows&,
                   const MeansPass&, std::span<float>, StreamRef) {
  throw_no_half("residual_form");
}

}  // namespace sluiceway::cuda
