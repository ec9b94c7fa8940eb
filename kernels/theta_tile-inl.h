// Loads a row or tile of weights as f32 before its updates, and writes theta after them.
//
// The build forbids contraction for sources that include this (CMakeLists.txt): theta is rounded
// before it is added to.
#if defined(SLUICEWAY_KERNELS_THETA_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_THETA_TILE_INL_H_
#undef SLUICEWAY_KERNELS_THETA_TILE_INL_H_
#else
#define SLUICEWAY_KERNELS_THETA_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/base/dtype.h"
#include "kernels/convert-inl.h"
#include "kernels/noise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

using NoiseVector = hn::Vec<NoiseTag>;

template <typename T>
void load_tile(const T* w, float* a, std::size_t count) {
  const NoiseTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(load_f32(d, w + j), d, a + j);
  if (j < count) {
    alignas(64) float tail[hn::MaxLanes(NoiseTag())];
    hn::Store(FirstLanes{count - j}.load(d, w + j), d, tail);
    std::memcpy(a + j, tail, (count - j) * sizeof(float));
  }
}

// Loads elements from `at` on from `w`.
inline void load_any(const std::byte* w, DType dtype, std::size_t at, float* a, std::size_t count) {
  switch (dtype) {
    case DType::kF32:
      return load_tile(reinterpret_cast<const float*>(w) + at, a, count);
    case DType::kF16:
      return load_tile(reinterpret_cast<const f16*>(w) + at, a, count);
    case DType::kBF16:
      return load_tile(reinterpret_cast<const bf16*>(w) + at, a, count);
  }
}

// out = gamma a, rounded with `bits`, one entry for each element, or to nearest if `bits` is null.
template <typename Out>
void write_theta(const float* a, float gamma, const std::uint16_t* bits, Out* out,
                 std::size_t count) {
  const NoiseTag d;
  const std::size_t lanes = hn::Lanes(d);
  const NoiseVector factor = hn::Set(d, gamma);
  const auto write = [&](const float* from, const std::uint16_t* noise, Out* to) HWY_ATTR {
    const NoiseVector theta = hn::Mul(factor, hn::LoadU(d, from));
    if constexpr (std::is_same_v<Out, bf16>) {
      if (noise != nullptr) return store_stochastic(d, theta, noise, to);
    }
    store_nearest(d, theta, to);
  };
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) write(a + j, bits == nullptr ? bits : bits + j, out + j);
  if (j == count) return;
  alignas(64) float tail[hn::MaxLanes(NoiseTag())] = {};
  alignas(64) std::uint16_t tail_bits[hn::MaxLanes(NoiseTag())] = {};
  alignas(64) Out written[hn::MaxLanes(NoiseTag())];
  std::memcpy(tail, a + j, (count - j) * sizeof(float));
  if (bits != nullptr) std::memcpy(tail_bits, bits + j, (count - j) * sizeof(std::uint16_t));
  write(tail, bits == nullptr ? bits : tail_bits, written);
  std::memcpy(out + j, written, (count - j) * sizeof(Out));
}

// Writes the same to elements from `at` on of `out`.
inline void write_any(const float* a, float gamma, const std::uint16_t* bits, std::byte* out,
                      DType dtype, std::size_t at, std::size_t count) {
  switch (dtype) {
    case DType::kF32:
      return write_theta(a, gamma, bits, reinterpret_cast<float*>(out) + at, count);
    case DType::kF16:
      return write_theta(a, gamma, bits, reinterpret_cast<f16*>(out) + at, count);
    case DType::kBF16:
      return write_theta(a, gamma, bits, reinterpret_cast<bf16*>(out) + at, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_THETA_TILE_INL_H_
