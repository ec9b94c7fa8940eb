#include "kernels/decompress.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void decompress(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&, const SparseRows&,
                const SparseRows&, const WeightUpdate&, std::span<float>, StreamRef) {
  throw_no_half("decompress");
}

void decompress(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&, const BlockRows&,
                const BlockRows&, const WeightUpdate&, std::span<float>, StreamRef) {
  throw_no_half("decompress");
}

void decompress(const AnyMatrix&, MatrixView<std::uint16_t>, const AnyMatrix&, const WeightUpdate&,
                StreamRef) {
  throw_no_half("decompress");
}

}  // namespace sluiceway::cuda
