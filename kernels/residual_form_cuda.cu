#include "kernels/projector_checks.h"
#include "kernels/residual.h"
#include "kernels/residual_form.h"

namespace sluiceway::cuda {
namespace {

// R by decompress(), and its means by mean_squares(), which reads R again, so 3 m n sizeof(T)
// bytes. For one pass the expansion would leave the sums of each column over each group of rows, m
// n / b f32: 2 MiB for 4096 x 4096 and b = 32, but 5.6 MiB for 11008 x 4096, more than a stream's
// scratch has, and nothing bounds it. What it would save is at most a third of the bytes, and none
// of them where R is still in the second-level cache: 32 MiB of 16 bits for 4096 x 4096, where
// recent cards have 32 to 96.
template <class Rows>
void form(const AnyMatrix& g, MatrixView<float> s, const Rows& p, const Rows& q,
          const MeansPass& pass, std::span<float> scratch, StreamRef stream) {
  check_form(g, s, p, q, pass.means.row, pass.means.col, scratch);
  const AnyMatrix core{s.data, s.rows, s.cols, s.stride, DType::kF32};
  cuda::decompress(g, {}, core, p, q, {.alpha = -1.0F}, scratch, stream);
  cuda::mean_squares(g, pass, 1.0F, stream);
}

}  // namespace

void residual_form(const AnyMatrix& g, MatrixView<float> s, const SparseRows& p,
                   const SparseRows& q, const MeansPass& pass, std::span<float> scratch,
                   StreamRef stream) {
  form(g, s, p, q, pass, scratch, stream);
}

void residual_form(const AnyMatrix& g, MatrixView<float> s, const BlockRows& p, const BlockRows& q,
                   const MeansPass& pass, std::span<float> scratch, StreamRef stream) {
  form(g, s, p, q, pass, scratch, stream);
}

}  // namespace sluiceway::cuda
