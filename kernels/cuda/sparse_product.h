// A sparse matrix times a dense one on a CUDA device, by the vendor's library: what benchmarks put
// beside the kernels of projectors.
//
//   c <- alpha A b + beta c                  or, of transposes in place,  c^T <- alpha A b^T + beta
//   c^T
//
//   name    shape           dtype   layout                                       access
//   a       m x k           f32     by row: offset i32[m + 1], column i32, value read
//   b       k x n or n x k  f32     row-major, stride in elements                read
//   c       m x n or n x m  f32     row-major, stride in elements                read, write
//
// cuSPARSE stands behind it; on the machine of tests/support/simt, Eigen does.
//
// Ownership:     keeps the pointers of a, b and c, and the library's workspace.
// Lifetime:      outlives what run() has enqueued.
// Thread safety: one thread at a time.
// Numerics:      products and sums in f32, in an order that is the library's own.
// Errors:        InvalidArgument, naming the shapes. CudaError: what the library refused.
// Cost:          2 n flop a nonzero.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway::cuda {

struct SparseMatrix {
  const std::int32_t* offset = nullptr;
  const std::int32_t* column = nullptr;
  const float* value = nullptr;
  std::int64_t rows = 0, cols = 0, nonzeros = 0;
};

class SparseProduct {
 public:
  enum class Form { kPlain, kTransposed };

  SparseProduct(const SparseMatrix& a, Form form, MatrixView<const float> b, MatrixView<float> c,
                StreamRef stream);
  SparseProduct(const SparseProduct&) = delete;
  SparseProduct& operator=(const SparseProduct&) = delete;
  ~SparseProduct();

  // Enqueues on the stream that it was made for.
  void run(float alpha, float beta) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline void check_sparse_product(const SparseMatrix& a, SparseProduct::Form form,
                                 const MatrixView<const float>& b, const MatrixView<float>& c) {
  const bool plain = form == SparseProduct::Form::kPlain;
  const std::int64_t b_rows = plain ? b.rows : b.cols, b_cols = plain ? b.cols : b.rows;
  const std::int64_t c_rows = plain ? c.rows : c.cols, c_cols = plain ? c.cols : c.rows;
  SLUICEWAY_CHECK(a.cols == b_rows && a.rows == c_rows && b_cols == c_cols, "sparse_product: a is ",
                  a.rows, "x", a.cols, ", b is ", b.rows, "x", b.cols, ", c is ", c.rows, "x",
                  c.cols, ", expected shapes of a product");
}

}  // namespace sluiceway::cuda
