// Eight consecutive elements in the registers of one thread: the unit of every kernel here.
//
// Eight 16-bit elements are one load of 16 bytes (LDG.E.128), eight f32 are two; a warp covers 256
// adjacent elements. If an address is not a multiple of 16, or fewer than eight elements are left,
// the elements are moved one by one. So the start of an array never affects what a kernel computes
// or in which order.
//
// Numerics: conversions are those of kernels/base/dtype.h, bit for bit.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/base/view.h"

namespace sluiceway::cuda {

inline constexpr int kOctet = 8;

// T is f32, f16, bf16 or u16. The words hold the elements as they lie in memory.
template <typename T>
struct Octet {
  static constexpr int kWords = kOctet * static_cast<int>(sizeof(T)) / 4;
  std::uint32_t word[kWords];
};

template <typename T>
__device__ inline std::uint32_t bits_of(const Octet<T>& x, int k) {
  if constexpr (sizeof(T) == 4) return x.word[k];
  return k % 2 == 0 ? x.word[k / 2] & 0xFFFFU : x.word[k / 2] >> 16;
}

template <typename T>
__device__ inline float value_of(const Octet<T>& x, int k) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(x.word[k]);
  } else {
    return to_float(T{static_cast<std::uint16_t>(bits_of(x, k))});
  }
}

// Set each element once, in ascending order.
template <typename T>
__device__ inline void set_bits(Octet<T>& x, int k, std::uint32_t bits) {
  if constexpr (sizeof(T) == 4) {
    x.word[k] = bits;
  } else if (k % 2 == 0) {
    x.word[k / 2] = bits;
  } else {
    x.word[k / 2] |= bits << 16;
  }
}

__device__ inline std::uint32_t raw_bits(float x) { return __float_as_uint(x); }
__device__ inline std::uint32_t raw_bits(std::uint16_t x) { return x; }
template <typename T>
__device__ std::uint32_t raw_bits(T x) {
  return x.bits;
}

template <typename T>
__device__ inline T element_of(const Octet<T>& x, int k) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(x.word[k]);
  } else {
    return T{static_cast<std::uint16_t>(bits_of(x, k))};
  }
}

__device__ inline bool on_16_bytes(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

template <typename T>
__device__ Octet<T> load_aligned(const T* p) {
  Octet<T> x;
  const auto* from = reinterpret_cast<const uint4*>(p);
#pragma unroll
  for (int i = 0; i < Octet<T>::kWords / 4; ++i) {
    const uint4 four = from[i];
    x.word[4 * i] = four.x;
    x.word[4 * i + 1] = four.y;
    x.word[4 * i + 2] = four.z;
    x.word[4 * i + 3] = four.w;
  }
  return x;
}

template <typename T>
__device__ Octet<T> load_one_by_one(const T* p, int count) {
  Octet<T> x;
#pragma unroll
  for (int k = 0; k < kOctet; ++k) set_bits(x, k, k < count ? raw_bits(p[k]) : 0U);
  return x;
}

// Loads elements [0, count) from p on, and zeros after them; count may be 0.
template <typename T>
__device__ Octet<T> load_octet(const T* p, int count) {
  return count == kOctet && on_16_bytes(p) ? load_aligned(p) : load_one_by_one(p, count);
}

// Does the same for kRows rows, `stride` elements apart, of which `rows` exist. One branch serves
// all of them, so that every load is issued before the first is waited for.
template <int kRows, typename T>
__device__ void load_octets(const T* p, std::int64_t stride, std::int64_t rows, int count,
                            Octet<T> (&x)[kRows]) {
  const bool whole = rows >= kRows && count == kOctet;
  if (whole && on_16_bytes(p) && stride * static_cast<std::int64_t>(sizeof(T)) % 16 == 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] = load_aligned(p + r * stride);
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      x[r] = load_one_by_one(p + r * stride, r < rows ? count : 0);
    }
  }
}

template <typename T>
__device__ void store_octet(T* p, const Octet<T>& x, int count) {
  if (count == kOctet && on_16_bytes(p)) {
    auto* to = reinterpret_cast<uint4*>(p);
#pragma unroll
    for (int i = 0; i < Octet<T>::kWords / 4; ++i) {
      const uint4 four{x.word[4 * i], x.word[4 * i + 1], x.word[4 * i + 2], x.word[4 * i + 3]};
      to[i] = four;
    }
  } else {
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      if (k < count) p[k] = element_of(x, k);
    }
  }
}

template <typename T>
__device__ inline void values_of(const Octet<T>& octet, float (&x)[kOctet]) {
#pragma unroll
  for (int k = 0; k < kOctet; ++k) x[k] = value_of(octet, k);
}

template <typename T>
__device__ inline void load_values(const T* p, int count, float (&x)[kOctet]) {
  values_of(load_octet(p, count), x);
}

// Rounds to nearest even.
template <typename T>
__device__ inline Octet<T> nearest_octet(const float (&x)[kOctet]) {
  Octet<T> octet;
#pragma unroll
  for (int k = 0; k < kOctet; ++k) set_bits(octet, k, raw_bits(from_float<T>(x[k])));
  return octet;
}

template <typename T>
__device__ inline void store_nearest(T* p, const float (&x)[kOctet], int count) {
  store_octet(p, nearest_octet<T>(x), count);
}

// Returns how many of the eight elements from `first` on lie before `end`.
__device__ inline int octet_count(std::int64_t first, std::int64_t end) {
  const std::int64_t left = end - first;
  return left <= 0 ? 0 : left >= kOctet ? kOctet : static_cast<int>(left);
}

// Calls f(typed view of g), on the host.
template <typename F>
void with_elements(const AnyMatrix& g, const F& f) {
  switch (g.dtype) {
    case DType::kF32:
      return f(g.as<const float>());
    case DType::kF16:
      return f(g.as<const f16>());
    case DType::kBF16:
      return f(g.as<const bf16>());
  }
}

}  // namespace sluiceway::cuda
