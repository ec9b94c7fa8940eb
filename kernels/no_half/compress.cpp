#include "kernels/compress.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void prepare_products(const SparseRows&, const SparseRows&, DeviceId) {
  throw_no_half("prepare_products");
}

void prepare_products(const BlockRows&, const BlockRows&, DeviceId) {
  throw_no_half("prepare_products");
}

void compress(MatrixView<float>, float, const AnyMatrix&, const SparseRows&, const SparseColumns&,
              std::span<float>, StreamRef) {
  throw_no_half("compress");
}

void compress(MatrixView<float>, float, const AnyMatrix&, const BlockRows&, const BlockRows&,
              std::span<float>, StreamRef) {
  throw_no_half("compress");
}

void compress(MatrixView<float>, float, const AnyMatrix&, StreamRef) { throw_no_half("compress"); }

}  // namespace sluiceway::cuda
