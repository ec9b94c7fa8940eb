// W <- round(decay W + alpha x) on octets of a row; one sink for each rounding of decompress.h.
//
//   __device__ void load(row, rows, col, count, Old (&old)[n])         `rows` of the n rows exist
//   __device__ void take(row, col, count, old, const float (&x)[8])    called by whole warps
//   __device__ void finish()                                           all threads call it, at the
//   end
//
// A sink reads and writes its octets of w (and low) once, by 16 bytes if rows are aligned. Call
// load() early and for all rows of a thread, so that memory is busy while x is computed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/decompress.h"

namespace sluiceway::cuda {

struct Blend {  // decay w rounded once, then a fused multiply-add, as on the CPU.
  float decay, alpha;

  __device__ float operator()(float w, float x) const {
    return fmaf(alpha, x, __fmul_rn(decay, w));
  }
};

template <typename T>
struct NearestSink {
  using Old = Octet<T>;
  MatrixView<T> w;
  Blend blend;

  template <int kRows>
  __device__ void load(std::int64_t row, std::int64_t rows, std::int64_t col, int count,
                       Old (&old)[kRows]) const {
    load_octets(w.row(row) + col, w.stride, rows, count, old);
  }
  __device__ void take(std::int64_t row, std::int64_t col, int count, const Old& old,
                       const float (&x)[kOctet]) const {
    float updated[kOctet];
#pragma unroll
    for (int k = 0; k < kOctet; ++k) updated[k] = blend(value_of(old, k), x[k]);
    store_nearest(w.row(row) + col, updated, count);
  }
  __device__ void finish() const {}
};

struct StochasticSink {
  using Old = Octet<bf16>;
  MatrixView<bf16> w;
  Blend blend;
  NoiseSource noise;
  std::int64_t row_offset;

  template <int kRows>
  __device__ void load(std::int64_t row, std::int64_t rows, std::int64_t col, int count,
                       Old (&old)[kRows]) const {
    load_octets(w.row(row) + col, w.stride, rows, count, old);
  }
  __device__ void take(std::int64_t row, std::int64_t col, int count, const Old& old,
                       const float (&x)[kOctet]) const {
    const std::int64_t index = (row_offset + row) * w.cols + col;
    const Octet<std::uint16_t> bits = noise_octet(noise, static_cast<std::uint64_t>(index));
    float updated[kOctet];
#pragma unroll
    for (int k = 0; k < kOctet; ++k) updated[k] = blend(value_of(old, k), x[k]);
    store_octet(w.row(row) + col, stochastic_octet(updated, bits), count);
  }
  __device__ void finish() const {}
};

struct ResidualSink {
  struct Old {
    Octet<bf16> hi;
    Octet<std::uint16_t> low;
  };
  MatrixView<bf16> w;
  MatrixView<std::uint16_t> low;
  Blend blend;

  template <int kRows>
  __device__ void load(std::int64_t row, std::int64_t rows, std::int64_t col, int count,
                       Old (&old)[kRows]) const {
    Octet<bf16> hi[kRows];
    Octet<std::uint16_t> lower[kRows];
    load_octets(w.row(row) + col, w.stride, rows, count, hi);
    load_octets(low.row(row) + col, low.stride, rows, count, lower);
#pragma unroll
    for (int r = 0; r < kRows; ++r) old[r] = {hi[r], lower[r]};
  }
  __device__ void take(std::int64_t row, std::int64_t col, int count, const Old& old,
                       const float (&x)[kOctet]) const {
    Octet<bf16> new_hi;
    Octet<std::uint16_t> new_low;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      const float joined = join_residual(element_of(old.hi, k), element_of(old.low, k));
      const float updated = blend(joined, x[k]);
      set_bits(new_hi, k, raw_bits(residual_hi(updated)));
      set_bits(new_low, k, residual_low(updated));
    }
    store_octet(w.row(row) + col, new_hi, count);
    store_octet(low.row(row) + col, new_low, count);
  }
  __device__ void finish() const {}
};

// Calls f(sink of w), on the host; check_weight() has already passed.
template <typename F>
void with_sink(const AnyMatrix& w, MatrixView<std::uint16_t> low, const WeightUpdate& update,
               const F& f) {
  const Blend blend{update.decay, update.alpha};
  switch (w.dtype) {
    case DType::kF32:
      return f(NearestSink<float>{w.as<float>(), blend});
    case DType::kF16:
      return f(NearestSink<f16>{w.as<f16>(), blend});
    case DType::kBF16:
      break;
  }
  switch (update.rounding) {
    case Rounding::kNearest:
      return f(NearestSink<bf16>{w.as<bf16>(), blend});
    case Rounding::kStochastic:
      return f(StochasticSink{w.as<bf16>(), blend, NoiseSource::of(update.key), update.row_offset});
    case Rounding::kResidual:
      return f(ResidualSink{w.as<bf16>(), low, blend});
  }
}

}  // namespace sluiceway::cuda
