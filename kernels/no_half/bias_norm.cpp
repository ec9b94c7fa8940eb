#include "kernels/bias_norm.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void bias_norm(BiasNorm*, const AnyMatrix&, const SparseRows&, const SparseRows&,
               const SparseColumns&, std::span<float>, StreamRef) {
  throw_no_half("bias_norm");
}

void bias_norm(BiasNorm*, const AnyMatrix&, const BlockRows&, const BlockRows&, std::span<float>,
               StreamRef) {
  throw_no_half("bias_norm");
}

}  // namespace sluiceway::cuda
