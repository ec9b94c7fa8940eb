// The part of a gradient that a projection leaves, and an update from it with factored moments.
//
//   R = G - P S Q^T                       formed in place of G, with r and c, by residual_form()
//   r_i = mean_j R_ij^2,  c_j = mean_i R_ij^2                mean_squares(), without P S Q^T
//   trains, alpha = -lr                   the same two: R is finite, and |R| >= share |S|
//   U_ij = R_ij / (a_i b_j + eps)         a, b: roots of V's factors [Adafactor] algorithm 4
//   alpha = -lr / max(1, rms / max_rms)   residual_clip(); rms = sqrt(mean U_ij^2)
//   W <- decay W + alpha U                residual_apply(); alpha sign(R) in residual_sign()
//
// All but the means is as the verdict says: where R does not train, W stays as it is.
//
//   name    shape   dtype             layout                                 access
//   r       m x n   f32 | bf16 | f16  row-major, stride in elements          read
//   w       m x n   f32 | bf16        row-major, stride in elements          read, write
//   low     m x n   u16               row-major; kResidual only, else empty  read, write
//   rows, a m       f32                                                      written, read
//   cols, b n       f32                                                      written, read
//   verdict 1                                                                read, written
//
// Numerics: squares and their sums in f32, each sum in a fixed order: equal bits from call to call
//           on one instruction set; a mean is within 1e-8 (m + n) of the exact one. U in f32; W
//           rounded once, as decompress() does. A NaN or an infinity in R is one in the means of
//           its row and column. Means of means in double, `rms` within 1e-5 of itself.
// Aliasing: w, low, rows and cols overlap nothing.
// Errors:   InvalidArgument, naming both shapes, before any element changes.
// Cost:     each reads r once, residual_apply() and residual_sign() read and write w (and low)
// once.
//           3 flop an element for the means, 5 for the others.
// Source:   [Adafactor] Shazeer and Stern, arXiv 1804.04235.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/decompress.h"
#include "kernels/factored_moment.h"
#include "kernels/factored_roots.h"
#include "kernels/residual_verdict.h"

namespace sluiceway {

// The formula that both halves share.
constexpr float clipped_alpha(double lr, double rms, double max_rms) {
  const double over = rms / max_rms;
  return static_cast<float>(-lr / (over > 1.0 ? over : 1.0));
}

}  // namespace sluiceway

namespace sluiceway::cpu {

// All run on the calling thread.
// Of scale * r.
void mean_squares(const AnyMatrix& r, std::span<float> rows, std::span<float> cols,
                  float scale = 1.0F);
// sqrt(mean U_ij^2); 0 for an empty matrix.
double residual_rms(const AnyMatrix& r, const FactoredRoots& roots);
void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                    const FactoredRoots& roots, const WeightUpdate& update);
void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                   const WeightUpdate& update);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream`; all pointers, `verdict` too, are device pointers and stay valid until then.
// Unavailable where this build has no such half, CudaError if the launch is refused.
void mean_squares(const AnyMatrix& r, const MeansPass& pass, float scale, StreamRef stream);
void residual_clip(ResidualVerdict* verdict, const AnyMatrix& r, const FactoredRoots& roots,
                   double lr, double max_rms, StreamRef stream);
void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                    const FactoredRoots& roots, const WeightUpdate& update,
                    const ResidualVerdict* verdict, StreamRef stream);
void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                   const WeightUpdate& update, const ResidualVerdict* verdict, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`, whose memory `verdict` is in: the only place that chooses a half.
// Takes the means of scale * r and the scan of r, and uses the means as `pass` says.
inline void mean_squares(const AnyMatrix& r, const MeansPass& pass, float scale, StreamRef stream) {
  check_moments(pass);
  if (!stream.is_host()) return cuda::mean_squares(r, pass, scale, stream);
  cpu::mean_squares(r, pass.means.row, pass.means.col, scale);
  if (pass.scan != nullptr) *pass.scan = cpu::overflow_scan(r);
  cpu::use_means(pass);
}
inline void residual_clip(ResidualVerdict* verdict, const AnyMatrix& r, const FactoredRoots& roots,
                          double lr, double max_rms, StreamRef stream) {
  if (!stream.is_host()) return cuda::residual_clip(verdict, r, roots, lr, max_rms, stream);
  if (!verdict->trains) return;
  verdict->rms = cpu::residual_rms(r, roots);
  verdict->alpha = clipped_alpha(lr, verdict->rms, max_rms);
}
// Of `update` all but alpha, which is the verdict's.
inline void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                           const FactoredRoots& roots, const WeightUpdate& update,
                           const ResidualVerdict* verdict, StreamRef stream) {
  if (!stream.is_host()) return cuda::residual_apply(w, low, r, roots, update, verdict, stream);
  if (!verdict->trains) return;
  WeightUpdate judged = update;
  judged.alpha = verdict->alpha;
  cpu::residual_apply(w, low, r, roots, judged);
}
inline void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                          const WeightUpdate& update, const ResidualVerdict* verdict,
                          StreamRef stream) {
  if (!stream.is_host()) return cuda::residual_sign(w, low, r, update, verdict, stream);
  if (!verdict->trains) return;
  WeightUpdate judged = update;
  judged.alpha = verdict->alpha;
  cpu::residual_sign(w, low, r, judged);
}

}  // namespace sluiceway
