// A matrix with a pending update and noise of low rank, and its two perturbed neighbours.
//
//   (L^T R)_ij added to x: x_0 = x,  x_{s+1} = fma(L_si, R_sj, x_s)     s ascending
//
//   a     = w + L^T R of `pending`                    with the factors of all periods stacked
//   theta = gamma a
//   z     = 0 + L^T R of `direction`                  [LOZO, arXiv 2410.07698] z = U V^T
//   plus  = round(fma(+eps, z, theta))                perturb_low_rank()
//   minus = round(fma(-eps, z, theta))
//   out   = round(theta)                              materialise_low_rank()
//
//   name         shape    dtype               layout           access
//   w            m x n    f32 | f16 | bf16    rows contiguous  read
//   plus, minus  m x n    f32 | f16 | bf16    the same         write; one type for both
//   out          m x n    f32 | f16 | bf16    the same         write
//   left         k x m    f32                 row-major        read
//   right        k x n    f32                 row-major        read
//
// draw_noise() makes the factors, and materialise() on their k m elements sums left ones: with U
// drawn anew in each step and V kept for a period, sum_t c_t z_t = (sum_t c_t U_t) V^T. So that z
// has unit second moments, V carries a factor 1 / sqrt(k). If materialise_low_rank() with gamma 1
// folds a product L^T R into w, the bits of every later result stay the same.
//
// Numerics: f32; each fma and the product by gamma round once; then to nearest even, or, for bf16,
//           stochastically with noise_16(rounding_key, first + i n + j), like materialise(). Equal
//           bits on every instruction set and device, for any split of rows, except for the payload
//           of a NaN. Zero factors may turn -0 into +0 and change nothing else. If a thread flushes
//           denormals (runtime/device/denormals.h), so do these.
// Aliasing: plus and minus overlap nothing. `out` is disjoint from w, or w itself if the types are
//           equal.
// Errors:   InvalidArgument, naming both shapes, before any element changes.
// Cost:     w read once, plus and minus (out) written once, (m + n) k floats for each factor pair;
//           2 k flop an element and pair. The roof is the bytes of the matrices: in bf16, a device
//           with 20 flop a byte stays below it up to about 50 rows of factors.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/decompress.h"
#include "kernels/philox.h"

namespace sluiceway {

// L^T R; zero if there are no rows. For rows [i, j) of w, pass columns [i, j) of `left`.
struct LowRank {
  MatrixView<const float> left, right;
};

}  // namespace sluiceway

namespace sluiceway::cpu {

// Run on the calling thread. To parallelise, split the rows.
void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                      const LowRank& pending, float gamma, const LowRank& direction, float eps);
void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                          float gamma, Rounding rounding = Rounding::kNearest,
                          const NoiseKey& rounding_key = {}, std::uint64_t first = 0);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream`; arrays are device memory and stay valid until the work has run. Throw
// Unavailable in a build without CUDA, CudaError if the launch fails.
void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                      const LowRank& pending, float gamma, const LowRank& direction, float eps,
                      StreamRef stream);
void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                          float gamma, Rounding rounding, const NoiseKey& rounding_key,
                          std::uint64_t first, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                             const LowRank& pending, float gamma, const LowRank& direction,
                             float eps, StreamRef stream) {
  if (stream.is_host()) {
    return cpu::perturb_low_rank(w, plus, minus, pending, gamma, direction, eps);
  }
  cuda::perturb_low_rank(w, plus, minus, pending, gamma, direction, eps, stream);
}
inline void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                                 float gamma, Rounding rounding, const NoiseKey& rounding_key,
                                 std::uint64_t first, StreamRef stream) {
  if (stream.is_host()) {
    return cpu::materialise_low_rank(w, out, pending, gamma, rounding, rounding_key, first);
  }
  cuda::materialise_low_rank(w, out, pending, gamma, rounding, rounding_key, first, stream);
}

}  // namespace sluiceway
