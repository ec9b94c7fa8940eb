// The formula of adam.h for one element, with the same order of roundings as the CPU's fused form.
// The compiler may not fuse any other product, so every kernel that calls this gets the same bits.
#pragma once

#include <cuda_runtime.h>

#include "kernels/adam_coefficients.h"

namespace sluiceway::cuda {

// Advances m by the raw gradient g; returns the scaled gradient.
__device__ inline float advance_first(const AdamCoefficients& c, float g, float& m) {
  const float scaled = __fmul_rn(g, c.grad_scale);
  m = fmaf(c.one_minus_beta1, scaled - m, m);
  return scaled;
}

__device__ inline float corrected_first(const AdamCoefficients& c, float m) {
  return __fmul_rn(m, c.inverse_correction1);
}

// Advances m and v by the raw gradient g; returns the direction.
__device__ inline float adam_direction_of(const AdamCoefficients& c, float g, float& m, float& v) {
  const float scaled = advance_first(c, g, m);
  v = fmaf(c.beta2, v, __fmul_rn(__fmul_rn(c.one_minus_beta2, scaled), scaled));
  const float denominator = fmaf(__fsqrt_rn(v), c.inverse_sqrt_correction2, c.eps);
  return __fdiv_rn(corrected_first(c, m), denominator);
}

__device__ inline float moved(const AdamCoefficients& c, float w, float direction) {
  return fmaf(c.minus_lr, direction, __fmul_rn(c.keep, w));
}

}  // namespace sluiceway::cuda
