// A matrix whose pending update and whose noise are of low rank, and its two perturbed neighbours.
//
//   (L^T R)_ij added to x: x_0 = x,  x_{s+1} = fma(L_si, R_sj, x_s)     s ascending
//
//   a     = w + L^T R of `pending`                    the periods' factors, one below the other
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
// Factors come from draw_noise(), and sums of left ones from materialise() on their k m elements:
// with U drawn anew in each step and V kept for a period, sum_t c_t z_t = (sum_t c_t U_t) V^T. For
// z to have unit second moments V carries a factor 1 / sqrt(k). A product of L^T R that is folded
// into w by materialise_low_rank() with gamma 1 leaves the bits of every later result as they were.
//
// Numerics: f32, each fma and the product by gamma one rounding; then to nearest even, or, for
// bf16,
//           stochastically with noise_16(rounding_key, first + i n + j), as materialise(). Equal
//           bits on every instruction set and device, for any split of rows, but for the payload of
//           a NaN. Zero factors may turn -0 into +0 and change nothing else.
//           Where a thread flushes denormals (runtime/device/denormals.h), so do these.
// Aliasing: plus and minus overlap nothing. `out` is disjoint from w, or w itself where the types
//           are equal.
// Errors:   InvalidArgument, naming both shapes, before any element changes.
// Cost:     w read once, plus and minus (out) written once, (m + n) k floats for each factor pair;
//           2 k flop an element and pair. The roof is the bytes of the matrices: a device with 20
//           flop a byte stays below it up to some 50 rows of factors in bf16.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/decompress.h"
#include "kernels/philox.h"

namespace sluiceway {

// L^T R; no rows: zero. For rows [i, j) of w, take columns [i, j) of `left`.
struct LowRank {
  MatrixView<const float> left, right;
};

}  // namespace sluiceway

namespace sluiceway::cpu {

// Run on the calling thread. A caller goes parallel over rows.
void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                      const LowRank& pending, float gamma, const LowRank& direction, float eps);
void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                          float gamma, Rounding rounding = Rounding::kNearest,
                          const NoiseKey& rounding_key = {}, std::uint64_t first = 0);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream`; arrays are device memory and stay valid until then. Unavailable where this
// build has no such half, CudaError if the launch is refused.
void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                      const LowRank& pending, float gamma, const LowRank& direction, float eps,
                      StreamRef stream);
void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                          float gamma, Rounding rounding, const NoiseKey& rounding_key,
                          std::uint64_t first, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`: the only place that chooses between the halves.
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
