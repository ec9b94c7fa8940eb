// Measures how much of a gradient a projector pair loses. Reads G in panels and never copies it.
//
//   bias_sq = |P P^T G Q Q^T - G|_F^2          docs/algorithm.md section 2, estimation bias
//   grad_sq = |G|_F^2                          relative bias rho = sqrt(bias_sq / grad_sq)
//
//   name    shape   dtype             layout                                      access
//   g       m x n   f32 | bf16 | f16  row-major, stride in elements               read
//   p       m x dm  f32               r nonzeros a row, or blocks                 read
//   q       n x dn  f32               r nonzeros a row and by column, or blocks   read
//   scratch         f32               bias_norm_scratch_elems() elements          written
//
// Numerics: elements of the bias in f32, squares summed in double per row panel.
// Aliasing: scratch overlaps nothing.
// Errors:   InvalidArgument, naming both shapes, before scratch changes. The caller vouches for
//           sparse indices.
// Cost:     twice the flop of compress and decompress; reads g twice. Scratch holds the core and
//           one panel of rows.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"

namespace sluiceway {

struct BiasNorm {
  double bias_sq = 0.0;
  double grad_sq = 0.0;
};

std::int64_t bias_norm_scratch_elems(const SparseRows& p, const SparseRows& q);
std::int64_t bias_norm_scratch_elems(const BlockRows& p, const BlockRows& q);

}  // namespace sluiceway

namespace sluiceway::cpu {

// Runs on the calling thread. `q_columns` is the result of sparse_columns() for `q`.
BiasNorm bias_norm(const AnyMatrix& g, const SparseRows& p, const SparseRows& q,
                   const SparseColumns& q_columns, std::span<float> scratch);
BiasNorm bias_norm(const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
                   std::span<float> scratch);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream`; *result is device memory, and the other pointers are device pointers too.
// Throws Unavailable in a build without CUDA, CudaError if the launch fails.
void bias_norm(BiasNorm* result, const AnyMatrix& g, const SparseRows& p, const SparseRows& q,
               const SparseColumns& q_columns, std::span<float> scratch, StreamRef stream);
void bias_norm(BiasNorm* result, const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
               std::span<float> scratch, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`, which also holds `result`. Only this function chooses between CPU
// and CUDA.
inline void bias_norm(BiasNorm* result, const AnyMatrix& g, const SparseRows& p,
                      const SparseRows& q, const SparseColumns& q_columns, std::span<float> scratch,
                      StreamRef stream) {
  if (!stream.is_host()) return cuda::bias_norm(result, g, p, q, q_columns, scratch, stream);
  *result = cpu::bias_norm(g, p, q, q_columns, scratch);
}
inline void bias_norm(BiasNorm* result, const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
                      std::span<float> scratch, StreamRef stream) {
  if (!stream.is_host()) return cuda::bias_norm(result, g, p, q, scratch, stream);
  *result = cpu::bias_norm(g, p, q, scratch);
}

}  // namespace sluiceway
