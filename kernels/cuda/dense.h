// Dense products of f32 matrices on a CUDA device, by the vendor's library.
//
//   c <- alpha op(a) op(b) + beta c         op(x) is x or its transpose
//
//   name    shape   dtype   layout                            access
//   op(a)   m x k   f32     row-major, stride in elements     read
//   op(b)   k x n   f32     row-major, stride in elements     read
//   c       m x n   f32     row-major, stride in elements     write; read unless beta is 0
//
// cuBLAS does the work; on the machine of tests/support/simt, Eigen does.
//
// The library works in the scratch of the stream (stream_scratch_bytes.h).
//
// Thread safety: any thread; calls for one device take turns to enqueue.
// Numerics: products and sums in f32 (no TF32), in the library's own order.
// Aliasing: c overlaps neither a nor b.
// Errors:   InvalidArgument, naming the shapes, before anything is enqueued. CudaError if the
//           library fails.
// Cost:     2 m n k flop.
#pragma once

#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway::cuda {

struct Factor {
  MatrixView<const float> x;
  bool transposed = false;

  std::int64_t rows() const noexcept { return transposed ? x.cols : x.rows; }
  std::int64_t cols() const noexcept { return transposed ? x.rows : x.cols; }
};

// Creates the library's state for a device. Otherwise the first product there creates it, which
// allocates and may wait until the device is idle.
void prepare_gemm(DeviceId device);

// Enqueues on `stream`; all memory is the device's and stays valid until the product has run.
void gemm(float alpha, const Factor& a, const Factor& b, float beta, MatrixView<float> c,
          StreamRef stream);

inline void check_gemm(const Factor& a, const Factor& b, MatrixView<float> c) {
  SLUICEWAY_CHECK(a.cols() == b.rows(), "gemm: op(a) is ", a.rows(), "x", a.cols(), ", op(b) is ",
                  b.rows(), "x", b.cols(),
                  ", expected the columns of op(a) to equal the rows of op(b)");
  SLUICEWAY_CHECK(c.rows == a.rows() && c.cols == b.cols(), "gemm: c is ", c.rows, "x", c.cols,
                  ", expected ", a.rows(), "x", b.cols());
}

}  // namespace sluiceway::cuda
