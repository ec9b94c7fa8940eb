// One factor of a core whose gradient is never formed: projects the rows of a linear layer's input
// or output gradient into the subspace.
//
//   W <- G P                  for G = dY, and G = X with Q in place of P; then
//   S = P^T (dY^T X) Q = (dY P)^T (X Q)         docs/algorithm.md section 1
//
// The framework computes the product of the two, a dense one of dm x T by T x dn.
//
//   name    shape   dtype             layout                                      access
//   w       T x d   f32 | bf16 | f16  row-major, stride in elements               written
//   g       T x m   f32 | bf16 | f16  row-major, stride in elements               read
//   p       m x d   f32               r nonzeros a row, or blocks                 read
//   scratch         f32               project_scratch_elems() elements            written
//
// Numerics: products and sums in f32, in the order of p's rows; one rounding to nearest where w is
//           is of 16 bits. Equal bits from call to call on one instruction set; instruction sets,
//           and CPU and CUDA, agree to 1e-6 + 4 eps sum |g p|. On a device a vendor library
//           multiplies by a sparse p of more than 12,288 rows (cuda/project_columns.h), in its own
//           order of sums.
// Aliasing: w and scratch overlap nothing.
// Errors:   InvalidArgument, naming both shapes, before any element of w or scratch changes. Sparse
//           indices are not checked.
// Cost:     sparse: 2 r m T flop; blocks of k of b: 2 k m T flop. Reads g and writes w once; reads
//           p once for each 16 rows of g (from the cache, while it fits there). A device first
//           lists a sparse p by column, in scratch.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

// Returns the elements of scratch, whatever the number of rows of g.
std::int64_t project_scratch_elems(const SparseRows& p);
std::int64_t project_scratch_elems(const BlockRows& p);

}  // namespace sluiceway

namespace sluiceway::cpu {

// Runs on the calling thread. To parallelise, split the rows of w and g.
void project_rows(const AnyMatrix& w, const AnyMatrix& g, const SparseRows& p,
                  std::span<float> scratch);
void project_rows(const AnyMatrix& w, const AnyMatrix& g, const BlockRows& p,
                  std::span<float> scratch);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream` and returns; all pointers are device pointers and stay valid until the work
// has run. Throws Unavailable in a build without CUDA, CudaError if the launch fails.
void project_rows(const AnyMatrix& w, const AnyMatrix& g, const SparseRows& p,
                  std::span<float> scratch, StreamRef stream);
void project_rows(const AnyMatrix& w, const AnyMatrix& g, const BlockRows& p,
                  std::span<float> scratch, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void project_rows(const AnyMatrix& w, const AnyMatrix& g, const SparseRows& p,
                         std::span<float> scratch, StreamRef stream) {
  if (stream.is_host()) return cpu::project_rows(w, g, p, scratch);
  cuda::project_rows(w, g, p, scratch, stream);
}
inline void project_rows(const AnyMatrix& w, const AnyMatrix& g, const BlockRows& p,
                         std::span<float> scratch, StreamRef stream) {
  if (stream.is_host()) return cpu::project_rows(w, g, p, scratch);
  cuda::project_rows(w, g, p, scratch, stream);
}

}  // namespace sluiceway
