// AdamW's direction with a factored second moment: two thirds of the bytes of adam_direction().
//
//   g <- grad_scale * g
//   m <- m + (1 - beta1) (g - m)
//   u =  (m / (1 - beta1^t)) / (a_i b_j + eps)     a, b: roots of V / (1 - beta2^t) [Adafactor]
//   d =  u / max(1, rms(u))                        the clip of [Adafactor] section 6
//
//   name         shape   dtype        layout                          access
//   g            m x n   f32 | bf16   row-major, stride in elements   read
//   m_in, m_out  m x n   f32          row-major, stride in elements   read, written
//   roots        m, n    f32                                          read; eps comes with them
//   d            m x n   f32 | bf16   row-major, stride in elements   written, nearest even
//
// The means of g^2 that V is made of are those of mean_squares().
//
// The product of means is no bound: of a diagonal g, as of a gradient in its own singular basis, u
// is |g| / |g_ii|, thousands where singular values fall. The whole moment of AdamW needs no clip.
//
// Numerics: f32; m has the bits that adam_direction() gives it. Equal bits for any alignment; a d
//           that is clipped has them on one instruction set. rms(u) within 1e-5 of itself.
// Aliasing: m_out may be exactly m_in; nothing else overlaps.
// Errors:   InvalidArgument, naming both shapes, or the step if below 1; nothing was written.
// Cost:     14 bytes an element with bf16 g and d: reads g, m, writes m, d; the means read g again.
//           Where d is clipped, reads m and writes d once more.
#pragma once

#include "kernels/adam.h"
#include "kernels/base/stream_ref.h"
#include "kernels/base/view.h"
#include "kernels/factored_roots.h"
#include "kernels/residual.h"

namespace sluiceway {

// What u is multiplied with: both halves share it.
constexpr float direction_clip(double rms) { return clipped_alpha(-1, rms, 1); }

}  // namespace sluiceway

namespace sluiceway::cpu {

// Of `hyper`, beta1 and step are used.
template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream` and return; all pointers are device memory and stay valid until then.
// Throw Unavailable where this build has no such half.
template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// On the device of `stream`: the only place that chooses between the halves.
template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d, StreamRef stream) {
  if (stream.is_host()) {
    return cpu::factored_adam_direction<T>(g, grad_scale, m_in, m_out, roots, hyper, d);
  }
  cuda::factored_adam_direction<T>(g, grad_scale, m_in, m_out, roots, hyper, d, stream);
}

}  // namespace sluiceway
