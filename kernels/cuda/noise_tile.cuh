// The noise of noise.h on the device: a block of 256 threads draws the noise of 2048 elements
// together.
//
// Where one word serves many elements, the eight elements of a thread need eight Philox blocks. So
// words (for Gaussian noise: values) go through shared memory, and each Philox block is computed
// once. If a key needs fewer threads than there are, several keys are drawn at once.
//
// Numerics: as in noise.h, with __fmaf_rn, __fsqrt_rn and __fmul_rn, so nothing is contracted.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/noise.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/noise.h"

namespace sluiceway::cuda {

inline constexpr unsigned kTileThreads = 256;
inline constexpr std::uint64_t kTileElems = kTileThreads * kOctet;

// Tables that drawing kernels receive by value, since a device cannot read a table of the host.
struct NoiseTables {
  float quantiles[128], log_terms[8], sin_terms[4], cos_terms[4];

  static NoiseTables of_host() {
    NoiseTables tables{};
    for (std::size_t i = 0; i < 128; ++i) tables.quantiles[i] = kNoiseQuantiles[i];
    for (std::size_t i = 0; i < 8; ++i) tables.log_terms[i] = kLogTerms[i];
    for (std::size_t i = 0; i < 4; ++i) tables.sin_terms[i] = kSinTerms[i];
    for (std::size_t i = 0; i < 4; ++i) tables.cos_terms[i] = kCosTerms[i];
    return tables;
  }
};

template <int kTerms>
__device__ inline float horner(float x, const float (&terms)[kTerms]) {
  float sum = terms[kTerms - 1];
#pragma unroll
  for (int k = kTerms - 2; k >= 0; --k) sum = __fmaf_rn(sum, x, terms[k]);
  return sum;
}

// Box-Muller as noise.h defines it.
__device__ inline void gaussian_pair(std::uint32_t u, std::uint32_t v, const NoiseTables& tables,
                                     float& cosine, float& sine) {
  const float uniform = __fmaf_rn(__int2float_rn(static_cast<int>(u >> 1)), 0x1p-31F, 0x1p-32F);
  const std::uint32_t bits = __float_as_uint(uniform);
  const int exponent = static_cast<int>(bits - 0x3F3504F3U) >> 23;
  const float f =
      __fadd_rn(__uint_as_float(bits - (static_cast<std::uint32_t>(exponent) << 23)), -1.0F);
  const float log_m = __fmaf_rn(__fmul_rn(f, f), horner(f, tables.log_terms), f);
  const float log = __fmaf_rn(__int2float_rn(exponent), kLn2, log_m);
  const float r = __fsqrt_rn(__fmul_rn(-2.0F, log));

  const std::uint32_t quarter = (v + 0x20000000U) >> 30;
  const float t = __fmul_rn(__int2float_rn(static_cast<int>(v - (quarter << 30))), 0x1p-32F);
  const float s = __fmul_rn(t, t);
  const float near_sin = __fmul_rn(t, horner(s, tables.sin_terms));
  const float near_cos = __fmaf_rn(s, horner(s, tables.cos_terms), 1.0F);
  const bool odd = (quarter & 1U) != 0;
  const std::uint32_t sin_sign = quarter << 30 & 0x80000000U;
  const std::uint32_t cos_sign = (quarter + 1) << 30 & 0x80000000U;
  cosine = __fmul_rn(r, __uint_as_float(__float_as_uint(odd ? near_sin : near_cos) ^ cos_sign));
  sine = __fmul_rn(r, __uint_as_float(__float_as_uint(odd ? near_cos : near_sin) ^ sin_sign));
}

// The threads [0, kTileThreads / kKeys) of a key call draw(); then, after a barrier, every thread
// of the block calls value(). `drawn` has kWords words of shared memory.
template <NoiseFamily kFamily>
struct TileNoise {
  static constexpr unsigned kKeys = kFamily == NoiseFamily::kRademacher     ? 16
                                    : kFamily == NoiseFamily::kByteQuantile ? 2
                                                                            : 1;
  static constexpr unsigned kWords = static_cast<unsigned>(64 * kTileElems / noise_unit(kFamily));

  __device__ static void draw(const NoiseSource& source, std::uint64_t tile, unsigned thread,
                              const NoiseTables& tables, std::uint32_t* drawn) {
    for (unsigned b = thread; b < kWords / 4; b += kTileThreads / kKeys) {
      const PhiloxCounter words = noise_block(source, tile * (kWords / 4) + b);
      std::uint32_t* const to = drawn + b / 16 * 64 + b % 16;
      if constexpr (kFamily == NoiseFamily::kGaussian) {
#pragma unroll
        for (unsigned w = 0; w < 4; w += 2) {
          float cosine, sine;
          gaussian_pair(words[w], words[w + 1], tables, cosine, sine);
          to[16 * w] = __float_as_uint(cosine);
          to[16 * w + 16] = __float_as_uint(sine);
        }
      } else {
#pragma unroll
        for (unsigned w = 0; w < 4; ++w) to[16 * w] = words[w];
      }
    }
  }

  // Returns z of element 8 threadIdx.x + k of the tile.
  __device__ static float value(const std::uint32_t* drawn, unsigned k, const float* quantiles) {
    const unsigned e = kOctet * threadIdx.x + k;
    if constexpr (kFamily == NoiseFamily::kGaussian) {
      return __uint_as_float(drawn[e]);
    } else if constexpr (kFamily == NoiseFamily::kByteQuantile) {
      const std::uint32_t byte = drawn[e / 64 * 16 + e % 16] >> (8 * (e / 16 % 4)) & 0xFFU;
      const std::uint32_t size = __float_as_uint(quantiles[byte & 127U]);
      return __uint_as_float(size | (byte & 128U) << 24);
    } else {
      const std::uint32_t bits = drawn[e / 512 * 16 + e % 16] << (e / 16 % 32);
      return __uint_as_float(0x3F800000U | (bits & 0x80000000U));
    }
  }
};

// The eight elements of this thread; the call's range contains [low, high) of them. Element 0 is
// `at` elements from the start of the arrays, or before it if negative.
struct TilePart {
  std::int64_t at;
  int low, high;

  __device__ static TilePart of_thread(std::uint64_t tile, std::uint64_t first,
                                       std::int64_t elems) {
    const auto at = static_cast<std::int64_t>(tile * kTileElems + kOctet * threadIdx.x - first);
    const std::int64_t left = elems - at;
    return {at,
            at >= 0         ? 0
            : at <= -kOctet ? kOctet
                            : static_cast<int>(-at),
            left <= 0        ? 0
            : left >= kOctet ? kOctet
                             : static_cast<int>(left)};
  }

  template <typename T>
  __device__ void load(const T* p, float (&x)[kOctet]) const {
    if (low == 0) return load_values(p + at, high, x);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) x[k] = k >= low && k < high ? to_float(p[at + k]) : 0.0F;
  }
  template <typename T>
  __device__ void store(T* p, const Octet<T>& x) const {
    if (low == 0) return store_octet(p + at, x, high);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      if (k >= low && k < high) p[at + k] = element_of(x, k);
    }
  }
};

inline unsigned tiles_of(std::uint64_t first, std::size_t elems) {
  if (elems == 0) return 0;
  return static_cast<unsigned>((first + elems - 1) / kTileElems - first / kTileElems + 1);
}

// Calls f with the family as a constant, on the host.
template <typename F>
void with_family(NoiseFamily family, const F& f) {
  switch (family) {
    case NoiseFamily::kRademacher:
      return f(TileNoise<NoiseFamily::kRademacher>{});
    case NoiseFamily::kByteQuantile:
      return f(TileNoise<NoiseFamily::kByteQuantile>{});
    case NoiseFamily::kGaussian:
      return f(TileNoise<NoiseFamily::kGaussian>{});
  }
}

}  // namespace sluiceway::cuda
