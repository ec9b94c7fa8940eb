// Enters the subspace: the core of a gradient, without forming P, Q or a product of full size.
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
// Numerics: products and sums in f32, ordered by the shapes alone: equal bits from call to call on
//           one instruction set. Instruction sets agree to 1e-6 + 4 eps sum |p g q|. On a device a
//           library multiplies by dense projectors (cuda/one_group.h), and by sparse ones where g
//           has more than 12,288 columns (cuda/project_columns.h): in its own order of sums.
// Aliasing: s and scratch overlap nothing.
// Errors:   InvalidArgument, naming both shapes, before any element of s or scratch changes.
//           Sparse indices are trusted: sparse_columns() has checked those of q.
// Cost:     sparse: 2 r m (n + dn) flop; blocks of k of b: 2 k m (n + dn) flop, dn = n k / b.
//           Reads g once; s is read and written once per call for blocks, r rows of s per row of g
//           for sparse (from the cache, while s fits there).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

// Elements of scratch for g of n columns; they do not grow with the rows of g.
std::int64_t compress_scratch_elems(const SparseRows& p, const SparseColumns& q);
std::int64_t compress_scratch_elems(const BlockRows& p, const BlockRows& q);

}  // namespace sluiceway

namespace sluiceway::cpu {

// Runs on the calling thread. A caller goes parallel over row ranges of g and p: into a core per
// thread for sparse, and into s.row_range() for blocks, where p.group_range() owns rows of s.
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
              const SparseColumns& q, std::span<float> scratch);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
              const BlockRows& q, std::span<float> scratch);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g);  // Identity: P = Q = I.

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

void prepare_products(const SparseRows& p, const SparseRows& q, DeviceId device);
void prepare_products(const BlockRows& p, const BlockRows& q, DeviceId device);

// Enqueues on `stream` and returns; all pointers are device pointers and stay valid until then.
// Unavailable where this build has no such half, CudaError if the launch is refused.
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
              const SparseColumns& q, std::span<float> scratch, StreamRef stream);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
              const BlockRows& q, std::span<float> scratch, StreamRef stream);
void compress(MatrixView<float> s, float beta, const AnyMatrix& g, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Makes what a vendor's library keeps for a device, where products with such projectors are the
// library's: compress(), and decompress() and project_rows(), which else would make it in their
// first call, and may wait until the device is idle. Their shapes alone count.
inline void prepare_products(const SparseRows& p, const SparseRows& q, DeviceId device) {
  if (!device.is_host()) cuda::prepare_products(p, q, device);
}
inline void prepare_products(const BlockRows& p, const BlockRows& q, DeviceId device) {
  if (!device.is_host()) cuda::prepare_products(p, q, device);
}

// On the device of `stream`: the only place that chooses between the halves.
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
