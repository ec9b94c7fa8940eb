// AdamW on a chunk in one pass: unscale, clip, both moments, decoupled decay, weight, 16-bit copy.
//
//   g <- grad_scale * g                     unscaling and clip factor in one number
//   m <- m + (1 - beta1) (g - m)            as torch's lerp
//   v <- beta2 v + (1 - beta2) g^2
//   d =  (m / (1 - beta1^t)) / (sqrt(v) / sqrt(1 - beta2^t) + eps)
//   w <- (1 - lr wd) w - lr d               [Loshchilov 2019]; torch.optim.AdamW, single tensor
//
//   name             shape   dtype               access
//   g                n       f32 | f16 | bf16    read
//   m, v             n       f32                 read from *_in, written to *_out
//   d                n       f32 | bf16          written by adam_direction: nearest even
//   w                n       see below           read from in, written to out, by adam_step
//
// Numerics: f32, with coefficients taken from double once a call. One step from equal state differs
//           from torch's by at most 1e-6 max(|w|, lr). Equal bits for any split of a chunk and any
//           alignment; instruction sets differ in the last digit (fused multiply-add or not).
//           A g that is not finite spoils m, v and w: scan it first, and skip the step.
// Aliasing: an output may be exactly its own input (m_out = m_in); nothing else overlaps.
// Errors:   InvalidArgument, naming both lengths, or the step if below 1; nothing was written.
// Cost:     28 bytes an element with f32 g and w: reads g, m, v, w, writes m, v, w. 20 flop.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/base/stream_ref.h"
#include "kernels/philox.h"

namespace sluiceway {

// Double, as in torch: 1 - 0.999F differs from 0.001 by a relative 1e-5.
struct AdamHyper {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  std::int64_t step = 1;  // t: 1 in the first step.
};

struct AdamMoments {
  std::span<const float> m_in, v_in;
  std::span<float> m_out, v_out;

  static AdamMoments in_place(std::span<float> m, std::span<float> v) { return {m, v, m, v}; }
};

// ---- How a weight is stored; adam_step() takes one of these -------------------------------------

struct MasterWeight {  // f32.
  std::span<const float> in;
  std::span<float> out;
};

template <typename T>
struct MasterAndCopy {  // f32, and the nearest f16 or bf16, which the device computes with.
  std::span<const float> in;
  std::span<float> out;
  std::span<T> copy;
};

struct StochasticWeight {  // bf16 alone, rounded up or down by noise_16(key, first + i).
  std::span<const bf16> in;
  std::span<bf16> out;
  NoiseKey key{};
  std::uint64_t first = 0;  // Index of element 0 in the whole tensor.
};

// An f32 cut in two, without loss: low is its raw lower half, hi its upper half rounded half up, so
// that hi alone is the nearest bf16.
struct HiLoWeight {
  std::span<const bf16> hi_in;
  std::span<const std::uint16_t> low_in;
  std::span<bf16> hi_out;
  std::span<std::uint16_t> low_out;
};

}  // namespace sluiceway

namespace sluiceway::cpu {

// Computes d alone, for a core that is applied elsewhere; does not use lr and weight_decay.
template <typename G, typename D>
void adam_direction(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                    const AdamHyper& hyper, std::span<D> d);

template <typename G, typename Weight>
void adam_step(std::span<const G> g, float grad_scale, const AdamMoments& moments,
               const AdamHyper& hyper, const Weight& w);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueue on `stream` and return; all pointers are device memory and stay valid until the work has
// run. Throw Unavailable in a build without CUDA.
template <typename G, typename D>
void adam_direction(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                    const AdamHyper& hyper, std::span<D> d, StreamRef stream);

template <typename G, typename Weight>
void adam_step(std::span<const G> g, float grad_scale, const AdamMoments& moments,
               const AdamHyper& hyper, const Weight& w, StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
template <typename G, typename D>
void adam_direction(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                    const AdamHyper& hyper, std::span<D> d, StreamRef stream) {
  if (stream.is_host()) return cpu::adam_direction(g, grad_scale, moments, hyper, d);
  cuda::adam_direction(g, grad_scale, moments, hyper, d, stream);
}

template <typename G, typename Weight>
void adam_step(std::span<const G> g, float grad_scale, const AdamMoments& moments,
               const AdamHyper& hyper, const Weight& w, StreamRef stream) {
  if (stream.is_host()) return cpu::adam_step(g, grad_scale, moments, hyper, w);
  cuda::adam_step(g, grad_scale, moments, hyper, w, stream);
}

}  // namespace sluiceway
