// What a projection leaves of a gradient, and the means of its squares, in one pass.
//
//   G <- R = G - P S Q^T
//   r_i = mean_j R_ij^2,  c_j = mean_i R_ij^2
//
//   name    shape   dtype             layout                          access
//   g       m x n   f32 | bf16 | f16  row-major, stride in elements   read, write
//   s       dm x dn f32               row-major, stride in elements   read
//   p, q    m x dm, n x dn  f32       r nonzeros a row, or blocks     read
//   rows    m       f32                                               written
//   cols    n       f32                                               written
//   scratch         f32               decompress_scratch_elems()      written
//
// Numerics: R has the bits of decompress() with decay 1 and alpha -1; means as of mean_squares(),
//           of R as it is stored.
// Aliasing: nothing overlaps.
// Errors:   InvalidArgument, naming both shapes, before any element changes.
// Cost:     decompress() on g, and 3 flop an element: reads and writes g once.
#pragma once

#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/decompress.h"
#include "kernels/factored_moment.h"

namespace sluiceway::cpu {

// Run on the calling thread.
void residual_form(const AnyMatrix& g, MatrixView<float> s, const SparseRows& p,
                   const SparseRows& q, std::span<float> rows, std::span<float> cols,
                   std::span<float> scratch);
void residual_form(const AnyMatrix& g, MatrixView<float> s, const BlockRows& p, const BlockRows& q,
                   std::span<float> rows, std::span<float> cols, std::span<float> scratch);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream` and return; all pointers are device pointers and stay valid until then.
// Unavailable where this build has no such half.
void residual_form(const AnyMatrix& g, MatrixView<float> s, const SparseRows& p,
                   const SparseRows& q, const MeansPass& pass, std::span<float> scratch,
                   StreamRef stream);
void residual_form(const AnyMatrix& g, MatrixView<float> s, const BlockRows& p, const BlockRows& q,
                   const MeansPass& pass, std::span<float> scratch, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Uses the means as `pass` says; its `scan` is null. On the device of `stream`: the only place that
// chooses between the halves.
inline void residual_form(const AnyMatrix& g, MatrixView<float> s, const SparseRows& p,
                          const SparseRows& q, const MeansPass& pass, std::span<float> scratch,
                          StreamRef stream) {
  check_moments(pass);
  if (!stream.is_host()) return cuda::residual_form(g, s, p, q, pass, scratch, stream);
  cpu::residual_form(g, s, p, q, pass.means.row, pass.means.col, scratch);
  cpu::use_means(pass);
}
inline void residual_form(const AnyMatrix& g, MatrixView<float> s, const BlockRows& p,
                          const BlockRows& q, const MeansPass& pass, std::span<float> scratch,
                          StreamRef stream) {
  check_moments(pass);
  if (!stream.is_host()) return cuda::residual_form(g, s, p, q, pass, scratch, stream);
  cpu::residual_form(g, s, p, q, pass.means.row, pass.means.col, scratch);
  cpu::use_means(pass);
}

}  // namespace sluiceway
