#include "kernels/compress_linear.h"

#include "kernels/no_half/no_half.h"

namespace sluiceway::cuda {

void project_rows(const AnyMatrix&, const AnyMatrix&, const SparseRows&, std::span<float>,
                  StreamRef) {
  throw_no_half("project_rows");
}

void project_rows(const AnyMatrix&, const AnyMatrix&, const BlockRows&, std::span<float>,
                  StreamRef) {
  throw_no_half("project_rows");
}

}  // namespace sluiceway::cuda
