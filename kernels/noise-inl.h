// SIMD form of noise.h, for kernels that apply noise while they write.
//
//   for_each_z<family>(NoiseStream(key), first, begin, end, [&](std::size_t j, auto z) HWY_ATTR {
//     ... z.axpy(d, scale, a) ...      // fma(scale, z of element first + j, a), NoiseTag's lanes
//   });
//
// `first` is a multiple of kNoiseTile; `begin` and `end` are multiples of the family's
// noise_unit(). Vectors come in any order, each once.
#if defined(SLUICEWAY_KERNELS_NOISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_NOISE_INL_H_
#undef SLUICEWAY_KERNELS_NOISE_INL_H_
#else
#define SLUICEWAY_KERNELS_NOISE_INL_H_
#endif

#include <hwy/highway.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/noise.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using NoiseTag = hn::CappedTag<float, 16>;  // A power of two: it divides the 16 words of a row.
inline constexpr std::size_t kNoiseTile = 2048;

// Rounds once on every target; where the instruction is missing, calls the library lane by lane.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[hn::MaxLanes(D())], y[hn::MaxLanes(D())], sum[hn::MaxLanes(D())];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, sum);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) sum[i] = std::fma(x[i], y[i], sum[i]);
  return hn::Load(d, sum);
#endif
}

struct AnyZ {
  hn::Vec<NoiseTag> value;

  HWY_INLINE hn::Vec<NoiseTag> axpy(NoiseTag d, hn::Vec<NoiseTag> scale,
                                    hn::Vec<NoiseTag> a) const {
    return fused(d, scale, value, a);
  }
};

struct UnitZ {  // +1 or -1: the product is exact, so even a separate sum equals an fma.
  hn::Vec<NoiseTag> value;

  HWY_INLINE hn::Vec<NoiseTag> axpy(NoiseTag d, hn::Vec<NoiseTag> scale,
                                    hn::Vec<NoiseTag> a) const {
#if HWY_NATIVE_FMA
    return fused(d, scale, value, a);
#else
    (void)d;
    return hn::Add(a, hn::Mul(scale, value));
#endif
  }
};

template <std::size_t kTerms>
HWY_INLINE hn::Vec<NoiseTag> horner(NoiseTag d, hn::Vec<NoiseTag> x,
                                    const std::array<float, kTerms>& terms) {
  auto sum = hn::Set(d, terms[kTerms - 1]);
  HWY_UNROLL(8)
  for (std::size_t k = 2; k <= kTerms; ++k) sum = fused(d, sum, x, hn::Set(d, terms[kTerms - k]));
  return sum;
}

// Box-Muller for one vector of words u and one of words v, as noise.h defines it.
struct GaussianPair {
  using U = hn::Vec<hn::RebindToUnsigned<NoiseTag>>;
  hn::Vec<NoiseTag> cosine, sine;

  HWY_INLINE GaussianPair(U u, U v) {
    const NoiseTag d;
    const hn::RebindToUnsigned<NoiseTag> du;
    const hn::RebindToSigned<NoiseTag> di;
    const auto uniform = fused(d, hn::ConvertTo(d, hn::BitCast(di, hn::ShiftRight<1>(u))),
                               hn::Set(d, 0x1p-31F), hn::Set(d, 0x1p-32F));
    const auto bits = hn::BitCast(di, uniform);
    const auto exponent = hn::ShiftRight<23>(hn::Sub(bits, hn::Set(di, 0x3F3504F3)));
    const auto m = hn::BitCast(d, hn::Sub(bits, hn::ShiftLeft<23>(exponent)));
    const auto f = hn::Sub(m, hn::Set(d, 1.0F));
    const auto log_m = fused(d, hn::Mul(f, f), horner(d, f, kLogTerms), f);
    const auto log = fused(d, hn::ConvertTo(d, exponent), hn::Set(d, kLn2), log_m);
    const auto r = hn::Sqrt(hn::Mul(hn::Set(d, -2.0F), log));

    const auto quarter = hn::ShiftRight<30>(hn::Add(v, hn::Set(du, 0x20000000U)));
    const auto rest = hn::BitCast(di, hn::Sub(v, hn::ShiftLeft<30>(quarter)));
    const auto t = hn::Mul(hn::ConvertTo(d, rest), hn::Set(d, 0x1p-32F));
    const auto s = hn::Mul(t, t);
    const auto near_sin = hn::Mul(t, horner(d, s, kSinTerms));
    const auto near_cos = fused(d, s, horner(d, s, kCosTerms), hn::Set(d, 1.0F));
    const auto odd = hn::RebindMask(d, hn::Ne(hn::And(quarter, hn::Set(du, 1)), hn::Zero(du)));
    const auto sign = hn::Set(du, 0x80000000U);
    const auto sin_sign = hn::And(hn::ShiftLeft<30>(quarter), sign);
    const auto cos_sign = hn::And(hn::ShiftLeft<30>(hn::Add(quarter, hn::Set(du, 1))), sign);
    cosine = hn::Mul(r, hn::Xor(hn::IfThenElse(odd, near_sin, near_cos), hn::BitCast(d, cos_sign)));
    sine = hn::Mul(r, hn::Xor(hn::IfThenElse(odd, near_cos, near_sin), hn::BitCast(d, sin_sign)));
  }
};

// Turns the 64 words of one unit into its elements, the first of which is element j of the tile.
template <NoiseFamily kFamily, class F>
HWY_INLINE void expand_unit(const std::uint32_t* words, std::size_t j, const F& f) {
  const NoiseTag d;
  const hn::RebindToUnsigned<NoiseTag> du;
  const hn::RebindToSigned<NoiseTag> di;
  for (std::size_t row = 0; row < 64; row += 16) {
    for (std::size_t lane = 0; lane < 16; lane += hn::Lanes(d)) {
      auto bits = hn::LoadU(du, words + row + lane);
      if constexpr (kFamily == NoiseFamily::kRademacher) {
        const auto sign = hn::Set(du, 0x80000000U), one = hn::Set(du, 0x3F800000U);
        HWY_UNROLL(4)
        for (std::size_t b = 0; b < 32; ++b) {
          f(j + 32 * row + 16 * b + lane, UnitZ{hn::BitCast(d, hn::OrAnd(one, bits, sign))});
          bits = hn::Add(bits, bits);
        }
      } else if constexpr (kFamily == NoiseFamily::kByteQuantile) {
        for (std::size_t b = 0; b < 4; ++b) {
          const auto index = hn::BitCast(di, hn::And(bits, hn::Set(du, 127)));
          const auto size = hn::GatherIndex(d, kNoiseQuantiles.data(), index);
          const auto sign = hn::And(hn::ShiftLeft<24>(bits), hn::Set(du, 0x80000000U));
          f(j + 4 * row + 16 * b + lane, AnyZ{hn::Or(size, hn::BitCast(d, sign))});
          bits = hn::ShiftRight<8>(bits);
        }
      } else if (row % 32 == 0) {
        const GaussianPair pair(bits, hn::LoadU(du, words + row + lane + 16));
        f(j + row + lane, AnyZ{pair.cosine});
        f(j + row + lane + 16, AnyZ{pair.sine});
      }
    }
  }
}

template <NoiseFamily kFamily, class F>
HWY_INLINE void for_each_z(const NoiseStream& noise, std::uint64_t first, std::size_t begin,
                           std::size_t end, const F& f) {
  constexpr std::size_t kUnit = noise_unit(kFamily);
  for (std::size_t j = begin; j < end; j += kUnit) {
    alignas(64) std::uint32_t words[NoiseStream::kGroupWords];
    noise.fill((first + j) / kUnit * NoiseStream::kGroupWords, words, NoiseStream::kGroupWords);
    expand_unit<kFamily>(words, j, f);
  }
}

// Divides a range of the tensor's elements into tiles: f(tile's first element, low, high), where
// the range contains elements [low, high) of the tile's 2048.
template <class F>
HWY_INLINE void for_each_tile(std::uint64_t first, std::size_t count, const F& f) {
  while (count > 0) {
    const std::size_t low = static_cast<std::size_t>(first % kNoiseTile);
    const std::size_t high = HWY_MIN(kNoiseTile, low + count);
    f(first - low, low, high);
    first += high - low;
    count -= high - low;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_NOISE_INL_H_
