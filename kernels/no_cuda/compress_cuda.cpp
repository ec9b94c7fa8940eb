#include "kernels/compress.h"
#include "kernels/no_cuda/unavailable.h"

namespace sluiceway::cuda {

void compress(MatrixView<float>, float, const AnyMatrix&, const SparseRows&, const SparseColumns&,
              std::span<float>, StreamRef) {
  throw_unavailable("compress");
}

void compress(MatrixView<float>, float, const AnyMatrix&, const BlockRows&, const BlockRows&,
              std::span<float>, StreamRef) {
  throw_unavailable("compress");
}

void compress(MatrixView<float>, float, const AnyMatrix&, StreamRef) {
  throw_unavailable("compress");
}

}  // namespace sluiceway::cuda
