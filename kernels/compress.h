// Enters the subspace: computes the core of a gradient without forming P, Q or a full-size product.
//
//   S <- beta S + P^T G Q            docs/algorithm.md section 1; beta = 0 overwrites S, even NaN
//
//   name    shape   dtype             layout                                      access
//   s       dm x dn f32               row-major, stride in elements               read, write
//   g       m x n   f32 | bf16 | f16  row-major, stride in elements               read
//   p       m x dm  f32               r nonzeros a row, or blocks                 read
//   q       n x dn  f32               by column (sparse_columns()), or blocks     read
//   scratch         f32               compress_scratch_elems() elements           written
//
// Numerics: products and sums in f32, in an order that depends on the shapes alone: equal bits from
//           call to call on one instruction set. Instruction sets agree to 1e-6 + 4 eps sum |p g
//           q|. On a device a vendor library multiplies by dense projectors (cuda/one_group.h), and
//           by sparse ones where g has more than 12,288 columns (cuda/project_columns.h); it sums
//           in its own order.
// Aliasing: s and scratch overlap nothing.
// Errors:   InvalidArgument, naming both shapes, before any element of s or scratch changes. Sparse
//           indices are not checked here: sparse_columns() has checked those of q.
// Cost:     sparse: 2 r m (n + dn) flop; blocks of k of b: 2 k m (n + dn) flop, dn = n k / b.
//           Reads g once; s is read and written once per call for blocks, r rows of s per row of g
//           for sparse (from the cache, while s fits there).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

// Returns the elements of scratch for a g of n columns; the number of rows of g does not matter.
std::int64_t compress_scratch_elems(const SparseRows& p, const SparseColumns& q);
std::int64_t compress_scratch_elems(const BlockRows& p, const BlockRows& q);

}  // namespace sluiceway

namespace sluiceway::cpu {

// Runs on the calling thread. To parallelise, split the rows of g and p: for sparse projectors give
// each thread a core of its own; for blocks let p.group_range() choose the rows of s, as
// s.row_range().
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
              const SparseColumns& q, std::span<float> scratch);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
              const BlockRows& q, std::span<float> scratch);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g);  // Identity: P = Q = I.

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

void prepare_products(const SparseRows& p, const SparseRows& q, DeviceId device);
void prepare_products(const BlockRows& p, const BlockRows& q, DeviceId device);

// Enqueues on `stream` and returns; all pointers are device pointers and stay valid until the work
// has run. Throws Unavailable in a build without CUDA, CudaError if the launch fails.
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
              const SparseColumns& q, std::span<float> scratch, StreamRef stream);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
              const BlockRows& q, std::span<float> scratch, StreamRef stream);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Creates the vendor library's state for a device if the library multiplies by such projectors.
// Otherwise the first compress(), decompress() or project_rows() would create it, and could wait
// until the device is idle. Reads only the shapes.
inline void prepare_products(const SparseRows& p, const SparseRows& q, DeviceId device) {
  if (!device.is_host()) cuda::prepare_products(p, q, device);
}
inline void prepare_products(const BlockRows& p, const BlockRows& q, DeviceId device) {
  if (!device.is_host()) cuda::prepare_products(p, q, device);
}

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
                     const SparseColumns& q, std::span<float> scratch, StreamRef stream) {
  if (stream.is_host()) return cpu::compress(s, beta, g, p, q, scratch);
  cuda::compress(s, beta, g, p, q, scratch, stream);
}
inline void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
                     const BlockRows& q, std::span<float> scratch, StreamRef stream) {
  if (stream.is_host()) return cpu::compress(s, beta, g, p, q, scratch);
  cuda::compress(s, beta, g, p, q, scratch, stream);
}
inline void compress(MatrixView<float> s, float beta, const AnyMatrix& g, StreamRef stream) {
  if (stream.is_host()) return cpu::compress(s, beta, g);
  cuda::compress(s, beta, g, stream);
}

}  // namespace sluiceway
