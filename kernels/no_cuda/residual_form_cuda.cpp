#include "kernels/no_cuda/unavailable.h"
#include "kernels/residual_form.h"

namespace sluiceway::cuda {

void residual_form(const AnyMatrix&, MatrixView<float>, const SparseRows&, const SparseRows&,
                   std::span<float>, std::span<float>, std::span<float>, StreamRef) {
  throw_unavailable("residual_form");
}
void residual_form(const AnyMatrix&, MatrixView<float>, const BlockRows&, const BlockRows&,
                   std::span<float>, std::span<float>, std::span<float>, StreamRef) {
  throw_unavailable("residual_form");
}

}  // namespace sluiceway::cuda
