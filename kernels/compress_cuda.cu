#include <algorithm>

#include "kernels/compress.h"
#include "kernels/cuda/compress_blocks.cuh"
#include "kernels/cuda/compress_sparse.cuh"
#include "kernels/cuda/one_group.h"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/cuda/sparse_product.h"
#include "kernels/projector_checks.h"

namespace sluiceway::cuda {
namespace {

// Reads g once, writes s once, and reads s once unless beta is 0.
template <typename T>
struct AccumulateOp {
  MatrixView<float> s;
  MatrixView<const T> g;
  float beta;

  __device__ void take(std::int64_t row, std::int64_t col, int count) const {
    float x[kOctet];
    load_values(g.row(row) + col, count, x);
    float* const at = s.row(row) + col;
    if (beta != 0.0F) {
      float old[kOctet];
      load_values(at, count, old);
#pragma unroll
      for (int k = 0; k < kOctet; ++k) x[k] = __fadd_rn(__fmul_rn(beta, old[k]), x[k]);
    }
    store_nearest(at, x, count);
  }
};

// S <- beta S + (P^T G) Q by two dense products. A 16-bit G is widened first, as many rows at a
// time as fit into the scratch beside P^T G: at least 64, and for a square G as many as Q keeps.
// Roof: 2 m n dm + 2 n dm dn flop; G is read once, and widened rows are written and read once.
void compress_dense(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
                    const BlockRows& q, std::span<float> scratch, StreamRef stream) {
  ScratchCutter cut(scratch);
  const MatrixView<float> left(cut.take(s.rows * g.cols), s.rows, g.cols);
  if (g.dtype == DType::kF32) {
    gemm(1.0F, dense_factor(p, true), {g.as<const float>()}, 0.0F, left, stream);
  } else {
    const auto room = static_cast<std::int64_t>(cut.rest().size()) / g.cols;
    for (std::int64_t first = 0; first < g.rows; first += room) {
      const std::int64_t rows = std::min(room, g.rows - first);
      const MatrixView<float> wide(cut.rest().data(), rows, g.cols);
      with_elements(g, [&]<typename T>(MatrixView<const T> view) {
        const AccumulateOp<T> widen{wide, view.row_range(first, first + rows), 0.0F};
        run_row_pass("compress", widen, rows, g.cols, stream);
      });
      gemm(1.0F, dense_factor(p, first, rows, true), {wide}, first == 0 ? 0.0F : 1.0F, left,
           stream);
    }
  }
  gemm(1.0F, {left}, dense_factor(q), beta, s, stream);
}

}  // namespace

// In a linear layer p multiplies rows too: the rows of the output's gradient.
void prepare_products(const SparseRows& p, const SparseRows& q, DeviceId device) {
  if (is_wide(p.rows) || is_wide(q.rows)) prepare_sparse_product(device);
}

void prepare_products(const BlockRows& p, const BlockRows& q, DeviceId device) {
  if (is_dense(p) && is_dense(q)) prepare_gemm(device);
}

void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
              const SparseColumns& q, std::span<float> scratch, StreamRef stream) {
  check_compress(s, g, p, q, scratch);
  run_compress_sparse(s, beta, g, p, q, scratch, stream);
}

// Unless groups are dense, P_g^T G is in shared memory and scratch is not used.
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
              const BlockRows& q, std::span<float> scratch, StreamRef stream) {
  check_compress(s, g, p, q, scratch);
  if (is_dense(p) && is_dense(q)) return compress_dense(s, beta, g, p, q, scratch, stream);
  with_elements(g, [&](auto view) { run_compress_blocks(s, beta, view, p, q, stream); });
}

void compress(MatrixView<float> s, float beta, const AnyMatrix& g, StreamRef stream) {
  check_compress(s, g);
  with_elements(g, [&]<typename T>(MatrixView<const T> view) {
    run_row_pass("compress", AccumulateOp<T>{s, view, beta}, s.rows, s.cols, stream);
  });
}

}  // namespace sluiceway::cuda
