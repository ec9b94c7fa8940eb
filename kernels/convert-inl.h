// SIMD loads and stores of f32, f16 and bf16 arrays as f32 vectors, and the rounding that stores
// do.
//
// Numerics: loads are exact. Nearest is ties-to-even and equals from_float<T>() bit for bit.
//           Stochastic: rounds up in magnitude with probability (discarded part) / ulp. Both keep a
//           NaN a NaN and an infinity an infinity.
#if defined(SLUICEWAY_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_CONVERT_INL_H_
#undef SLUICEWAY_KERNELS_CONVERT_INL_H_
#else
#define SLUICEWAY_KERNELS_CONVERT_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// x86's conversion instructions (F16C) agree with from_float<f16>(); other targets use integers.
#undef SLUICEWAY_HWY_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define SLUICEWAY_HWY_F16C 1
#else
#define SLUICEWAY_HWY_F16C 0
#endif

template <class D>
using U32 = hn::RebindToUnsigned<D>;
template <class D>
using U16 = hn::Rebind<std::uint16_t, D>;

// ---- f32 to bits -------------------------------------------------------------------------------

// Keeps the low 16 bits of each lane; the high ones are zero already.
template <class D>
HWY_INLINE hn::Vec<U16<D>> narrow(D /*d*/, hn::Vec<U32<D>> bits) {
  return hn::DemoteTo(U16<D>(), hn::BitCast(hn::RebindToSigned<U32<D>>(), bits));
}

template <class D>
HWY_INLINE hn::Vec<U32<D>> widen(D /*d*/, hn::Vec<U16<D>> bits) {
  return hn::PromoteTo(U32<D>(), bits);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<U32<D>> bf16_nearest_bits(D /*d*/, V x) {
  const U32<D> du;
  const auto u = hn::BitCast(du, x);
  const auto top = hn::ShiftRight<16>(u);
  const auto odd = hn::And(top, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFF))));
  const auto quiet = hn::Or(top, hn::Set(du, 0x40));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
}

// `noise` holds 16 random bits per lane, in the low half.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<U32<D>> bf16_stochastic_bits(D /*d*/, V x, hn::Vec<U32<D>> noise) {
  const U32<D> du;
  const auto u = hn::BitCast(du, x);
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, noise));
  const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(du, 0x40));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
}

template <class D>
HWY_INLINE hn::Vec<D> bf16_to_f32(D d, hn::Vec<U16<D>> bits) {
  return hn::BitCast(d, hn::ShiftLeft<16>(widen(d, bits)));
}

#if SLUICEWAY_HWY_F16C

template <class D>
HWY_INLINE hn::Vec<D> f16_to_f32(D d, hn::Vec<U16<D>> bits) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<U16<D>> f16_nearest(D /*d*/, V x) {
  return hn::BitCast(U16<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), x));
}

#else  // The branches of dtype.h as selections; the constants are explained there.

template <class D>
HWY_INLINE hn::Vec<D> f16_to_f32(D d, hn::Vec<U16<D>> bits) {
  const U32<D> du;
  const hn::RebindToSigned<U32<D>> di;
  const auto u = widen(d, bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(u, hn::Set(du, 0x8000)));
  const auto magnitude = hn::And(u, hn::Set(du, 0x7FFF));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto normal = hn::Add(shifted, hn::Set(du, 112U << 23));
  const auto special = hn::Or(shifted, hn::Set(du, 0x7F800000U));
  const auto tiny =
      hn::BitCast(du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 0x1p-24F)));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto is_tiny = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x0400)));
  const auto is_special = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7BFF)));
  const auto value = hn::IfThenElse(is_special, special, hn::IfThenElse(is_tiny, tiny, normal));
  return hn::BitCast(d, hn::Or(sign, value));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<U16<D>> f16_nearest(D d, V x) {
  const U32<D> du;
  const hn::RebindToSigned<U32<D>> di;
  const auto u = hn::BitCast(du, x);
  const auto sign = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 0x8000));
  const auto magnitude = hn::And(u, hn::Set(du, 0x7FFFFFFFU));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3FF));
  const auto nan = hn::Or(payload, hn::Set(du, 0x7E00));
  const auto half_more = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto tiny = hn::Sub(hn::BitCast(du, half_more), hn::Set(du, 0x3F000000U));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1));
  const auto rebased = hn::Sub(magnitude, hn::Set(du, 0x38000000U - 0xFFFU));
  const auto normal = hn::ShiftRight<13>(hn::Add(rebased, odd));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const auto is_nan = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x7F800000)));
  const auto is_inf = hn::RebindMask(du, hn::Gt(signed_magnitude, hn::Set(di, 0x477FEFFF)));
  const auto is_tiny = hn::RebindMask(du, hn::Lt(signed_magnitude, hn::Set(di, 0x38800000)));
  auto value = hn::IfThenElse(is_tiny, tiny, normal);
  value = hn::IfThenElse(is_inf, hn::Set(du, 0x7C00), value);
  value = hn::IfThenElse(is_nan, nan, value);
  return narrow(d, hn::Or(sign, value));
}

#endif  // SLUICEWAY_HWY_F16C

// ---- Whole vectors, unaligned ------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<U16<D>> load_bits(D /*d*/, const void* p) {
  return hn::LoadU(U16<D>(), static_cast<const std::uint16_t*>(p));
}

template <class D>
HWY_INLINE void store_bits(D /*d*/, hn::Vec<U16<D>> bits, void* p) {
  hn::StoreU(bits, U16<D>(), static_cast<std::uint16_t*>(p));
}

template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const bf16* p) {
  return bf16_to_f32(d, load_bits(d, p));
}
template <class D>
HWY_INLINE hn::Vec<D> load_f32(D d, const f16* p) {
  return f16_to_f32(d, load_bits(d, p));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_nearest(D d, V x, float* p) {
  hn::StoreU(x, d, p);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_nearest(D d, V x, bf16* p) {
  store_bits(d, narrow(d, bf16_nearest_bits(d, x)), p);
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_nearest(D d, V x, f16* p) {
  store_bits(d, f16_nearest(d, x), p);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_stochastic(D d, V x, const std::uint16_t* noise, bf16* p) {
  const auto bits = widen(d, hn::LoadU(U16<D>(), noise));
  store_bits(d, narrow(d, bf16_stochastic_bits(d, x, bits)), p);
}

// store_stochastic() of `a` followed by `b`, narrowed together.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_stochastic_pair(D d, V a, V b, const std::uint16_t* noise, bf16* p) {
  const std::size_t lanes = hn::Lanes(d);
#if HWY_TARGET != HWY_SCALAR
  if (HWY_LIKELY(hn::AllFalse(d, hn::Or(hn::IsNaN(a), hn::IsNaN(b))))) {
    const U32<D> du;
    const U16<D> du16;
    const hn::Repartition<std::uint16_t, D> halves;
    const auto noise_a = widen(d, hn::LoadU(du16, noise));
    const auto noise_b = widen(d, hn::LoadU(du16, noise + lanes));
    const auto lower = hn::BitCast(halves, hn::Add(hn::BitCast(du, a), noise_a));
    const auto upper = hn::BitCast(halves, hn::Add(hn::BitCast(du, b), noise_b));
    return hn::StoreU(hn::ConcatOdd(halves, upper, lower), halves, &p->bits);
  }
#endif
  store_stochastic(d, a, noise, p);
  store_stochastic(d, b, noise + lanes, p + lanes);
}

// ---- Loops with a tail -------------------------------------------------------------------------

// A loop body is a template over one of these two, so the same code serves whole vectors and the
// end of an array. Lanes beyond the end read as zero.
struct WholeVector {
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* p) const {
    return load_f32(d, p);
  }
  template <class D, class V, typename T>
  HWY_INLINE void store(D d, V x, T* p) const {
    store_nearest(d, x, p);
  }
  template <class D>
  HWY_INLINE hn::Vec<U32<D>> load_u16(D d, const void* p) const {
    return widen(d, load_bits(d, p));
  }
  template <class D>
  HWY_INLINE void store_u16(D d, hn::Vec<U32<D>> bits, void* p) const {
    store_bits(d, narrow(d, bits), p);
  }
};

struct FirstLanes {
  std::size_t count;  // Less than the number of lanes.

  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* p) const {
    HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
    std::memcpy(lanes, p, count * sizeof(T));
    return load_f32(d, lanes);
  }
  template <class D, class V, typename T>
  HWY_INLINE void store(D d, V x, T* p) const {
    HWY_ALIGN T lanes[hn::MaxLanes(D())];
    store_nearest(d, x, lanes);
    std::memcpy(p, lanes, count * sizeof(T));
  }
  template <class D>
  HWY_INLINE hn::Vec<U32<D>> load_u16(D d, const void* p) const {
    HWY_ALIGN std::uint16_t lanes[hn::MaxLanes(D())] = {};
    std::memcpy(lanes, p, count * sizeof(std::uint16_t));
    return widen(d, load_bits(d, lanes));
  }
  template <class D>
  HWY_INLINE void store_u16(D d, hn::Vec<U32<D>> bits, void* p) const {
    HWY_ALIGN std::uint16_t lanes[hn::MaxLanes(D())];
    store_bits(d, narrow(d, bits), lanes);
    std::memcpy(p, lanes, count * sizeof(std::uint16_t));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_CONVERT_INL_H_
