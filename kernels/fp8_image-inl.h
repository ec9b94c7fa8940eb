// SIMD loads and stores of the blocks of an fp8 image (fp8_image.h).
#if defined(SLUICEWAY_KERNELS_FP8_IMAGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_FP8_IMAGE_INL_H_
#undef SLUICEWAY_KERNELS_FP8_IMAGE_INL_H_
#else
#define SLUICEWAY_KERNELS_FP8_IMAGE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/fp8_image.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Fp8Tag = hn::CappedTag<float, kFp8Block>;  // Whole vectors make up a block.
using Fp8Ints = hn::RebindToSigned<Fp8Tag>;
using Fp8Codes = hn::Rebind<std::uint8_t, Fp8Tag>;

HWY_INLINE float power_of_two(std::uint32_t biased) { return std::bit_cast<float>(biased << 23); }

// ---- A block from its image --------------------------------------------------------------------

HWY_INLINE void load_fp8_block(const std::uint8_t* codes, std::uint8_t scale, float* x) {
  const Fp8Tag d;
  const Fp8Ints di;
  const auto factor = hn::Set(d, power_of_two(scale));
  for (std::size_t i = 0; i < kFp8Block; i += hn::Lanes(d)) {
    const auto code = hn::PromoteTo(di, hn::LoadU(Fp8Codes(), codes + i));
    const auto magnitude = hn::And(code, hn::Set(di, 0x7F));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
    const auto normal = hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23));
    const auto tiny = hn::BitCast(di, hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-9F)));
    auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 8)), tiny, normal);
    value = hn::IfThenElse(hn::Eq(magnitude, hn::Set(di, 0x7F)), hn::Set(di, 0x7FC00000), value);
    hn::StoreU(hn::Mul(hn::BitCast(d, hn::Or(sign, value)), factor), d, x + i);
  }
}

// Loads elements from `at` on from the image.
inline void load_fp8_image(const std::byte* image, std::size_t at, float* a, std::size_t count) {
  while (count > 0) {
    const std::size_t in_tile = at % kFp8Tile, in_block = at % kFp8Block;
    const std::size_t part = std::min(count, kFp8Block - in_block);
    const auto* const tile =
        reinterpret_cast<const std::uint8_t*>(image) + at / kFp8Tile * kFp8TileBytes;
    const std::uint8_t scale = tile[in_tile / kFp8Block];
    const std::uint8_t* const codes = tile + kFp8Scales + in_tile;
    if (part == kFp8Block) {
      load_fp8_block(codes, scale, a);
    } else {
      std::uint8_t padded[kFp8Block] = {};
      float loaded[kFp8Block];
      std::memcpy(padded, codes, part);
      load_fp8_block(padded, scale, loaded);
      std::memcpy(a, loaded, part * sizeof(float));
    }
    at += part;
    a += part;
    count -= part;
  }
}

// ---- The image of a block ----------------------------------------------------------------------

// Returns the scale of a block. Infinities and NaN do not affect it.
HWY_INLINE std::uint8_t fp8_scale(const float* x) {
  const Fp8Tag d;
  const Fp8Ints di;
  auto largest = hn::Zero(di);
  for (std::size_t i = 0; i < kFp8Block; i += hn::Lanes(d)) {
    const auto bits = hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), hn::Set(di, 0x7FFFFFFF));
    largest = hn::Max(largest, hn::IfThenElseZero(hn::Lt(bits, hn::Set(di, 0x7F800000)), bits));
  }
  // Above 464 = 1.8125 * 2^8 the sum carries into the exponent.
  const std::int32_t carried = hn::GetLane(hn::MaxOfLanes(di, largest)) + (0x800000 - 0x680001);
  return static_cast<std::uint8_t>(std::clamp((carried >> 23) - 8, 11, 246));
}

// Returns the scale.
HWY_INLINE std::uint8_t store_fp8_block(const float* x, std::uint8_t* codes) {
  const Fp8Tag d;
  const Fp8Ints di;
  const std::uint8_t scale = fp8_scale(x);
  const auto inverse = hn::Set(d, power_of_two(254U - scale));
  const auto bits_of = [di](auto v) HWY_ATTR { return hn::BitCast(di, v); };
  for (std::size_t i = 0; i < kFp8Block; i += hn::Lanes(d)) {
    const auto value = hn::LoadU(d, x + i);
    const auto y = hn::Mul(value, inverse);  // At most 512, if finite.
    const auto sign = hn::And(hn::ShiftRight<24>(bits_of(value)), hn::Set(di, 0x80));
    const auto size = hn::And(bits_of(y), hn::Set(di, 0x7FFFFFFF));
    const auto odd = hn::And(hn::ShiftRight<20>(size), hn::Set(di, 1));
    const auto carried = hn::Add(size, hn::Add(odd, hn::Set(di, 0x7FFFF)));
    const auto normal = hn::Sub(hn::ShiftRight<20>(carried), hn::Set(di, 120 << 3));
    // Below 2^-6, adding 2^14 rounds to a multiple of 2^-9 and leaves it in the low bits.
    const auto tiny = hn::Sub(bits_of(hn::Add(hn::BitCast(d, size), hn::Set(d, 0x1p14F))),
                              hn::Set(di, (127 + 14) << 23));
    auto code = hn::IfThenElse(hn::Lt(size, hn::Set(di, (127 - 6) << 23)), tiny, normal);
    code = hn::Min(code, hn::Set(di, 0x7E));
    code = hn::IfThenElse(hn::Gt(size, hn::Set(di, 0x7F7FFFFF)), hn::Set(di, 0x7F), code);
    hn::StoreU(hn::DemoteTo(Fp8Codes(), hn::Or(sign, code)), Fp8Codes(), codes + i);
  }
  return scale;
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_FP8_IMAGE_INL_H_
