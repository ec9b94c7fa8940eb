// Leaves the subspace: one pass over a weight that decays it and adds alpha P D Q^T.
//
//   W <- decay W + alpha P D Q^T     docs/algorithm.md section 1; alpha is minus the learning rate
//
//   name    shape   dtype             layout                                      access
//   w       m x n   f32 | bf16 | f16  row-major, stride in elements               read, write
//   low     m x n   u16               row-major; kResidual only, else empty       read, write
//   d       dm x dn f32 | bf16 | f16  row-major, stride in elements               read
//   p       m x dm  f32               r nonzeros a row, or blocks                 read
//   q       n x dn  f32               r nonzeros a row, or blocks                 read
//   scratch         f32               decompress_scratch_elems() elements         written
//
// Numerics: P D Q^T in f32; decay W + alpha (P D Q^T) by one fused multiply-add if the processor
//           has it; rounded to the type of w once. Equal bits for any split of the rows, except for
//           dense projectors on a device (cuda/one_group.h), whose sums have a library's order.
//           Instruction sets agree to 1 ulp of w, 1e-6 + 4 eps |w| for f32. NaN and infinity pass
//           through rounding.
// Aliasing: w, low and scratch overlap nothing.
// Errors:   InvalidArgument, before any element changes, naming both shapes, or a rounding that the
//           type of w does not support. Sparse indices are not checked.
// Cost:     sparse: 2 r m (n + dn) flop; blocks of k of b: 2 k m (n + dn) flop, dn = n k / b.
//           Reads and writes w (and low) once; d is read once for blocks, r rows per row of w for
//           sparse (from the cache, while d fits there). Stochastic: one cycle more an element.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/philox.h"

namespace sluiceway {

enum class Rounding : std::uint8_t {
  kNearest,     // Ties to even. f32 supports only this, and loses nothing.
  kStochastic,  // bf16: up with the probability of the 16 discarded bits, so right on average.
  kResidual,    // bf16: w and `low` together are the exact f32 weight.
};

struct WeightUpdate {
  float decay = 1.0F;  // 1 - learning rate * weight decay.
  float alpha = 0.0F;
  Rounding rounding = Rounding::kNearest;
  NoiseKey key{};               // kStochastic: element (i, j) draws noise_16(key, index) with
  std::int64_t row_offset = 0;  // index = (row_offset + i) * n + j, whichever part of W this is.
};

// The f32 weight that (hi, low) represent: low is its lower half, hi its upper half, rounded half
// up, so that hi alone is the nearest bf16.
constexpr float join_residual(bf16 hi, std::uint16_t low) noexcept {
  const std::uint32_t upper = std::uint32_t{hi.bits} - (low >> 15);
  return std::bit_cast<float>(upper << 16 | low);
}
constexpr bf16 residual_hi(float x) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>((u >> 16) + (u >> 15 & 1U))};
}
constexpr std::uint16_t residual_low(float x) noexcept {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x));
}

// Returns the elements of scratch for a d of q.cols columns; the number of rows of w does not
// matter.
std::int64_t decompress_scratch_elems(const SparseRows& p, const SparseRows& q);
std::int64_t decompress_scratch_elems(const BlockRows& p, const BlockRows& q);

}  // namespace sluiceway

namespace sluiceway::cpu {

// Runs on the calling thread. To parallelise, split the rows of w and p and add the first row to
// update.row_offset; for blocks also split d, since p.group_range() chooses rows of it.
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const SparseRows& p, const SparseRows& q, const WeightUpdate& update,
                std::span<float> scratch);
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const BlockRows& p, const BlockRows& q, const WeightUpdate& update,
                std::span<float> scratch);
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const WeightUpdate& update);  // Identity: P = Q = I.

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream` and returns; all pointers are device pointers and stay valid until the work
// has run. Throws Unavailable in a build without CUDA, CudaError if the launch fails.
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const SparseRows& p, const SparseRows& q, const WeightUpdate& update,
                std::span<float> scratch, StreamRef stream);
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const BlockRows& p, const BlockRows& q, const WeightUpdate& update,
                std::span<float> scratch, StreamRef stream);
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const WeightUpdate& update, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                       const SparseRows& p, const SparseRows& q, const WeightUpdate& update,
                       std::span<float> scratch, StreamRef stream) {
  if (stream.is_host()) return cpu::decompress(w, low, d, p, q, update, scratch);
  cuda::decompress(w, low, d, p, q, update, scratch, stream);
}
inline void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                       const BlockRows& p, const BlockRows& q, const WeightUpdate& update,
                       std::span<float> scratch, StreamRef stream) {
  if (stream.is_host()) return cpu::decompress(w, low, d, p, q, update, scratch);
  cuda::decompress(w, low, d, p, q, update, scratch, stream);
}
inline void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                       const WeightUpdate& update, StreamRef stream) {
  if (stream.is_host()) return cpu::decompress(w, low, d, update);
  cuda::decompress(w, low, d, update, stream);
}

}  // namespace sluiceway
