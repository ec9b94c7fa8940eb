#include "kernels/factored_adam.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

template <typename T>
void factored_adam_direction(MatrixView<const T>, float, MatrixView<const float>, MatrixView<float>,
                             const FactoredRoots&, const AdamHyper&, MatrixView<T>, StreamRef) {
  throw_no_half("factored_adam_direction");
}

template void factored_adam_direction(MatrixView<const float>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<float>, StreamRef);
template void factored_adam_direction(MatrixView<const bf16>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<bf16>, StreamRef);

}  // namespace sluiceway::cuda
