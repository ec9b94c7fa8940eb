// A sparse matrix times a dense one on a CUDA device, by the vendor's library. Used for projectors
// that our kernels do not cover (project_columns.h), and by benchmarks that compare it with our
// kernels.
//
//   c <- alpha A b + beta c           or, on transposes in place,  c^T <- alpha A b^T + beta c^T
//
//   name    shape           dtype   layout                                       access
//   a       m x k           f32     by row: offset i32[m + 1], column i32, value read
//   b       k x n or n x k  f32     row-major, stride in elements                read
//   c       m x n or n x m  f32     row-major, stride in elements                write; read unless
//                                                                                beta is 0
//
// cuSPARSE does the work; on the machine of tests/support/simt, Eigen does.
//
// The library works in the scratch of the stream (stream_scratch.cuh).
//
// Thread safety: any thread; calls for one device take turns to enqueue.
// Numerics:      products and sums in f32, in the library's own order; kFixed gives equal bits from
//                call to call.
// Aliasing:      c overlaps neither a nor b.
// Errors:        InvalidArgument, naming the shapes, before anything is enqueued. CudaError if the
//                library fails or asks for more scratch than a stream has.
// Cost:          2 n flop a nonzero.
#pragma once

#include <cstdint>

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

enum class SparseForm { kPlain, kTransposed };
enum class SumOrder { kFixed, kFastest };

// Creates the library's state for a device. Otherwise the first product there creates it, which
// allocates and may wait until the device is idle.
void prepare_sparse_product(DeviceId device);

// Enqueues on `stream`; all memory is the device's and stays valid until the product has run.
void sparse_product(float alpha, const SparseMatrix& a, SparseForm form, MatrixView<const float> b,
                    float beta, MatrixView<float> c, SumOrder order, StreamRef stream);

inline void check_sparse_product(const SparseMatrix& a, SparseForm form,
                                 const MatrixView<const float>& b, const MatrixView<float>& c) {
  const bool plain = form == SparseForm::kPlain;
  const std::int64_t b_rows = plain ? b.rows : b.cols, b_cols = plain ? b.cols : b.rows;
  const std::int64_t c_rows = plain ? c.rows : c.cols, c_cols = plain ? c.cols : c.rows;
  SLUICEWAY_CHECK(a.cols == b_rows && a.rows == c_rows && b_cols == c_cols, "sparse_product: a is ",
                  a.rows, "x", a.cols, ", b is ", b.rows, "x", b.cols, ", c is ", c.rows, "x",
                  c.cols, ", expected shapes of a product");
}

}  // namespace sluiceway::cuda
