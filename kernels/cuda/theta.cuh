// Weights of any type as input, and outputs made of theta: both neighbours, or theta itself.
//
// direction() receives z if there is one; then whole warps call finish().
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/noise_tile.cuh"
#include "kernels/cuda/octet.cuh"

namespace sluiceway::cuda {

struct Input {
  const void* data;
  DType dtype;

  __device__ void load(const TilePart& part, float (&x)[kOctet]) const {
    if (dtype == DType::kF32) return part.load(static_cast<const float*>(data), x);
    if (dtype == DType::kF16) return part.load(static_cast<const f16*>(data), x);
    part.load(static_cast<const bf16*>(data), x);
  }
};

__device__ inline void store_as(DType dtype, void* out, const TilePart& part,
                                const float (&x)[kOctet]) {
  if (dtype == DType::kF32) return part.store(static_cast<float*>(out), nearest_octet<float>(x));
  if (dtype == DType::kF16) return part.store(static_cast<f16*>(out), nearest_octet<f16>(x));
  part.store(static_cast<bf16*>(out), nearest_octet<bf16>(x));
}

struct BothSides {
  void *plus, *minus;
  DType dtype;

  __device__ void direction(float scale, const float (&z)[kOctet], const float (&theta)[kOctet],
                            const TilePart& part) const {
    float x[kOctet];
#pragma unroll
    for (int k = 0; k < kOctet; ++k) x[k] = __fmaf_rn(scale, z[k], theta[k]);
    store_as(dtype, plus, part, x);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) x[k] = __fmaf_rn(-scale, z[k], theta[k]);
    store_as(dtype, minus, part, x);
  }
  __device__ void finish(const float (&)[kOctet], std::uint64_t, const TilePart&) const {}
};

struct ThetaAlone {
  void* out;
  DType dtype;
  bool stochastic;
  NoiseSource rounding;

  __device__ void direction(float, const float (&)[kOctet], const float (&)[kOctet],
                            const TilePart&) const {}
  __device__ void finish(const float (&theta)[kOctet], std::uint64_t element,
                         const TilePart& part) const {
    if (!stochastic) return store_as(dtype, out, part, theta);
    part.store(static_cast<bf16*>(out), stochastic_octet(theta, noise_octet(rounding, element)));
  }
};

}  // namespace sluiceway::cuda
