#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/state_codec_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/convert-inl.h"
#include "kernels/state_codec.h"

#ifndef SLUICEWAY_KERNELS_STATE_CODEC_LEVELS_
#define SLUICEWAY_KERNELS_STATE_CODEC_LEVELS_
namespace sluiceway {

constexpr int top_code(Companding c) { return c == Companding::kSigned ? 127 : 255; }
constexpr float inverse_square(Companding c) {
  const auto top = static_cast<float>(top_code(c));
  return 1.0F / (top * top);
}
// The top level is the scale itself.
static_assert(127.0F * 127.0F * inverse_square(Companding::kSigned) == 1.0F);
static_assert(255.0F * 255.0F * inverse_square(Companding::kPositive) == 1.0F);

}  // namespace sluiceway
#endif  // SLUICEWAY_KERNELS_STATE_CODEC_LEVELS_

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using StateTag = hn::CappedTag<float, 16>;  // Divides a block.
using StateVec = hn::Vec<StateTag>;
using StateBits = hn::Vec<U32<StateTag>>;
using StateInt = hn::RebindToSigned<StateTag>;
using StateByte = hn::Rebind<std::uint8_t, StateTag>;

class Noise {
 public:
  explicit Noise(const RoundingNoise& from)
      : bits_(from.bits.data()), multiplier_(hn::Set(U16<StateTag>(), from.multiplier)) {}

  HWY_INLINE bool to_nearest() const { return bits_ == nullptr; }
  // 16 random bits; `half` where values go to nearest.
  HWY_INLINE StateBits at(std::size_t i, std::uint32_t half) const {
    const StateTag d;
    if (to_nearest()) return hn::Set(U32<StateTag>(), half);
    return widen(d, hn::Mul(load_bits(d, bits_ + i), multiplier_));
  }

 private:
  const std::uint16_t* bits_;
  hn::Vec<U16<StateTag>> multiplier_;
};

// Returns `count` elements as a whole block: in place, or in `room`, followed by zeros.
HWY_INLINE const float* whole_block(const float* x, std::size_t count, float* room) {
  if (count == kStateBlock) return x;
  std::memcpy(room, x, count * sizeof(float));
  std::fill(room + count, room + kStateBlock, 0.0F);
  return room;
}

void store_bf16(const float* x, std::size_t n, const RoundingNoise& from, bf16* out) {
  const StateTag d;
  const Noise noise(from);
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < n; i += kStateBlock) {
    const std::size_t count = std::min(kStateBlock, n - i);
    alignas(64) float room[kStateBlock];
    bf16 stored[kStateBlock];
    const float* const block = whole_block(x + i, count, room);
    bf16* const to = count == kStateBlock ? out + i : stored;
    for (std::size_t j = 0; j < kStateBlock; j += lanes) {
      const auto value = hn::LoadU(d, block + j);
      const auto bits = noise.to_nearest() ? bf16_nearest_bits(d, value)
                                           : bf16_stochastic_bits(d, value, noise.at(i + j, 0));
      store_bits(d, narrow(d, bits), to + j);
    }
    if (to == stored) std::memcpy(out + i, stored, count * sizeof(bf16));
  }
}

void load_bf16(const bf16* stored, std::size_t n, float* out) {
  const StateTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(load_f32(d, stored + i), d, out + i);
  if (i < n) FirstLanes{n - i}.store(d, FirstLanes{n - i}.load(d, stored + i), out + i);
}

// Returns 2 where the bf16 nearest to an f32 is further from zero, else 0.
HWY_INLINE StateBits two_if_up(StateBits bits) {
  const StateTag d;
  const U32<StateTag> du;
  const StateInt di;
  const auto nearest = hn::ShiftLeft<16>(bf16_nearest_bits(d, hn::BitCast(d, bits)));
  const auto is_up = hn::Gt(hn::BitCast(di, nearest), hn::BitCast(di, bits));
  return hn::IfThenElseZero(hn::RebindMask(du, is_up), hn::Set(du, 2));
}

void store_24(const float* x, std::size_t n, const RoundingNoise& from, bf16* hi,
              std::uint8_t* low) {
  const StateTag d;
  const U32<StateTag> du;
  const Noise noise(from);
  for (std::size_t i = 0; i < n; i += kStateBlock) {
    const std::size_t count = std::min(kStateBlock, n - i);
    alignas(64) float room[kStateBlock];
    bf16 stored_hi[kStateBlock];
    std::uint8_t stored_low[kStateBlock];
    const float* const block = whole_block(x + i, count, room);
    const bool whole = count == kStateBlock;
    bf16* const to_hi = whole ? hi + i : stored_hi;
    std::uint8_t* const to_low = whole ? low + i : stored_low;
    for (std::size_t j = 0; j < kStateBlock; j += hn::Lanes(d)) {
      const auto random = noise.at(i + j, 0x80);
      const auto bits = hn::BitCast(du, hn::LoadU(d, block + j));
      auto top = hn::ShiftRight<8>(hn::Add(bits, hn::And(random, hn::Set(du, 0xFF))));
      const auto byte = hn::And(top, hn::Set(du, 0xFF));
      // Where the byte is 0x80: up or down, at random or to where the nearest bf16 is.
      const auto step =
          noise.to_nearest() ? two_if_up(bits) : hn::And(hn::ShiftRight<7>(random), hn::Set(du, 2));
      const auto beside = hn::Sub(hn::Add(top, step), hn::Set(du, 1));
      top = hn::IfThenElse(hn::Eq(byte, hn::Set(du, 0x80)), beside, top);
      const auto carry = hn::And(hn::ShiftRight<7>(top), hn::Set(du, 1));
      const auto upper = hn::And(hn::Add(hn::ShiftRight<8>(top), carry), hn::Set(du, 0xFFFF));
      store_bits(d, narrow(d, upper), to_hi + j);
      hn::StoreU(hn::TruncateTo(StateByte(), top), StateByte(), to_low + j);
    }
    if (whole) continue;
    std::memcpy(hi + i, stored_hi, count * sizeof(bf16));
    std::memcpy(low + i, stored_low, count);
  }
}

void load_24(const bf16* hi, const std::uint8_t* low, std::size_t n, float* out) {
  const StateTag d;
  const U32<StateTag> du;
  const std::size_t lanes = hn::Lanes(d);
  const auto joined = [&](const bf16* from_hi, const std::uint8_t* from_low, float* to) HWY_ATTR {
    const auto byte = hn::PromoteTo(du, hn::LoadU(StateByte(), from_low));
    const auto top = hn::Sub(widen(d, load_bits(d, from_hi)), hn::ShiftRight<7>(byte));
    const auto bits = hn::Or(hn::ShiftLeft<16>(top), hn::ShiftLeft<8>(byte));
    hn::StoreU(hn::BitCast(d, bits), d, to);
  };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) joined(hi + i, low + i, out + i);
  if (i == n) return;
  bf16 last_hi[hn::MaxLanes(d)] = {};
  std::uint8_t last_low[hn::MaxLanes(d)] = {};
  float last[hn::MaxLanes(d)];
  std::memcpy(last_hi, hi + i, (n - i) * sizeof(bf16));
  std::memcpy(last_low, low + i, n - i);
  joined(last_hi, last_low, last);
  std::memcpy(out + i, last, (n - i) * sizeof(float));
}

// ---- 8 bits -------------------------------------------------------------------------------------

// The magnitude of a code; the same operations for storing and loading.
template <Companding kKind>
HWY_INLINE StateVec level(StateVec scale, StateVec code) {
  const StateTag d;
  StateVec share = hn::Mul(hn::Mul(code, code), hn::Set(d, inverse_square(kKind)));
  share = hn::Mul(share, share);
  if constexpr (kKind == Companding::kPositive) share = hn::Mul(share, share);
  return hn::Mul(scale, share);
}

HWY_INLINE float largest(const float* block) {
  const StateTag d;
  StateVec most = hn::Zero(d);
  for (std::size_t j = 0; j < kStateBlock; j += hn::Lanes(d)) {
    most = hn::Max(most, hn::Abs(hn::LoadU(d, block + j)));
  }
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

// Returns the last code whose level is at or below `a`, or a neighbour of it where `a` is so close
// to a level that the root's last digit decides. Then rounding goes to that level in either case:
// up with certainty from the code below, and never up from its own.
template <Companding kKind>
HWY_INLINE StateVec code_below(StateVec a, StateVec inverse) {
  const StateTag d;
  const auto top = hn::Set(d, static_cast<float>(top_code(kKind)));
  StateVec root = hn::Sqrt(hn::Sqrt(hn::Mul(a, inverse)));
  if constexpr (kKind == Companding::kPositive) root = hn::Sqrt(root);
  return hn::Floor(hn::Min(hn::Mul(root, top), top));
}

template <Companding kKind>
HWY_INLINE void store_block(const float* block, const Noise& noise, std::size_t first,
                            std::uint8_t* codes, float& scale) {
  const StateTag d;
  const StateInt di;
  constexpr float kMost = std::numeric_limits<float>::max();
  scale = std::min(largest(block), kMost);
  if (scale < std::numeric_limits<float>::min()) {
    scale = 0;
    std::fill(codes, codes + kStateBlock, std::uint8_t{0});
    return;
  }
  const auto s = hn::Set(d, scale), inverse = hn::Set(d, 1.0F / scale), one = hn::Set(d, 1.0F);
  for (std::size_t j = 0; j < kStateBlock; j += hn::Lanes(d)) {
    const StateVec x = hn::LoadU(d, block + j), a = hn::Min(hn::Abs(x), hn::Set(d, kMost));
    StateVec code = code_below<kKind>(a, inverse);
    const StateVec below = level<kKind>(s, code), above = level<kKind>(s, hn::Add(code, one));
    // Up with probability (a - below) / (above - below).
    const auto random = hn::ConvertTo(d, hn::BitCast(di, noise.at(first + j, 0x8000)));
    const auto share = hn::Mul(hn::Add(random, hn::Set(d, 0.5F)), hn::Set(d, 0x1p-16F));
    const auto up = hn::Gt(hn::Sub(a, below), hn::Mul(share, hn::Sub(above, below)));
    code = hn::Add(code, hn::IfThenElseZero(up, one));
    if constexpr (kKind == Companding::kPositive) {
      code = hn::Max(code, hn::IfThenElseZero(hn::Gt(a, hn::Zero(d)), one));
      hn::StoreU(hn::DemoteTo(StateByte(), hn::ConvertTo(di, code)), StateByte(), codes + j);
    } else {
      const hn::Rebind<std::int8_t, StateTag> dc;
      const auto with_sign = hn::ConvertTo(di, hn::CopySign(code, x));
      hn::StoreU(hn::DemoteTo(dc, with_sign), dc, reinterpret_cast<std::int8_t*>(codes + j));
    }
  }
}

template <Companding kKind>
HWY_INLINE void store_blocks(const float* x, std::size_t n, const RoundingNoise& from,
                             std::uint8_t* codes, float* scales) {
  const Noise noise(from);
  for (std::size_t i = 0; i < n; i += kStateBlock) {
    alignas(64) float room[kStateBlock];
    const float* const block = whole_block(x + i, std::min(kStateBlock, n - i), room);
    store_block<kKind>(block, noise, i, codes + i, scales[i / kStateBlock]);
  }
}

void store_signed(const float* x, std::size_t n, const RoundingNoise& from, std::uint8_t* codes,
                  float* scales) {
  store_blocks<Companding::kSigned>(x, n, from, codes, scales);
}
void store_positive(const float* x, std::size_t n, const RoundingNoise& from, std::uint8_t* codes,
                    float* scales) {
  store_blocks<Companding::kPositive>(x, n, from, codes, scales);
}

template <Companding kKind>
HWY_INLINE StateVec loaded(const std::uint8_t* codes, StateVec scale) {
  const StateTag d;
  const StateInt di;
  if constexpr (kKind == Companding::kPositive) {
    const auto code = hn::PromoteTo(di, hn::LoadU(StateByte(), codes));
    return level<kKind>(scale, hn::ConvertTo(d, code));
  }
  const hn::Rebind<std::int8_t, StateTag> dc;
  const auto code = hn::ConvertTo(
      d, hn::PromoteTo(di, hn::LoadU(dc, reinterpret_cast<const std::int8_t*>(codes))));
  return hn::CopySign(level<kKind>(scale, code), code);
}

template <Companding kKind>
HWY_INLINE void load_blocks(const std::uint8_t* codes, const float* scales, std::size_t n,
                            float* out) {
  const StateTag d;
  for (std::size_t i = 0; i < n; i += kStateBlock) {
    const std::size_t count = std::min(kStateBlock, n - i);
    alignas(64) float room[kStateBlock];
    float* const to = count == kStateBlock ? out + i : room;
    const StateVec scale = hn::Set(d, scales[i / kStateBlock]);
    for (std::size_t j = 0; j < kStateBlock; j += hn::Lanes(d)) {
      hn::StoreU(loaded<kKind>(codes + i + j, scale), d, to + j);
    }
    if (to == room) std::memcpy(out + i, room, count * sizeof(float));
  }
}

void load_signed(const std::uint8_t* codes, const float* scales, std::size_t n, float* out) {
  load_blocks<Companding::kSigned>(codes, scales, n, out);
}
void load_positive(const std::uint8_t* codes, const float* scales, std::size_t n, float* out) {
  load_blocks<Companding::kPositive>(codes, scales, n, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {

HWY_EXPORT(store_bf16);
HWY_EXPORT(load_bf16);
HWY_EXPORT(store_24);
HWY_EXPORT(load_24);
HWY_EXPORT(store_signed);
HWY_EXPORT(store_positive);
HWY_EXPORT(load_signed);
HWY_EXPORT(load_positive);

void check_lengths(const char* what, std::size_t found, std::size_t n) {
  SLUICEWAY_CHECK(found == n, "state codec: ", what, " has ", found, " elements, expected ", n);
}

std::size_t blocks_of(std::size_t n) { return (n + kStateBlock - 1) / kStateBlock; }

void check_noise(const RoundingNoise& noise, std::size_t n) {
  if (noise.bits.empty()) return;
  check_lengths("noise", noise.bits.size(), blocks_of(n) * kStateBlock);
}

void check_blocks(const Blocks8& blocks, std::size_t n) {
  const std::size_t count = blocks_of(n);
  check_lengths("codes", blocks.codes.size(), count * kStateBlock);
  check_lengths("scales", blocks.scales.size(), count);
}

}  // namespace

namespace cpu {

void store_state(std::span<const float> x, const RoundingNoise& noise, std::span<bf16> out) {
  check_lengths("bf16", out.size(), x.size());
  check_noise(noise, x.size());
  HWY_DYNAMIC_DISPATCH(store_bf16)(x.data(), x.size(), noise, out.data());
}

void store_state(std::span<const float> x, const RoundingNoise& noise, const Split24& out) {
  check_lengths("hi", out.hi.size(), x.size());
  check_lengths("low", out.low.size(), x.size());
  check_noise(noise, x.size());
  HWY_DYNAMIC_DISPATCH(store_24)(x.data(), x.size(), noise, out.hi.data(), out.low.data());
}

void store_state(std::span<const float> x, Companding companding, const RoundingNoise& noise,
                 const Blocks8& out) {
  check_blocks(out, x.size());
  check_noise(noise, x.size());
  if (companding == Companding::kSigned) {
    HWY_DYNAMIC_DISPATCH(store_signed)
    (x.data(), x.size(), noise, out.codes.data(), out.scales.data());
  } else {
    HWY_DYNAMIC_DISPATCH(store_positive)
    (x.data(), x.size(), noise, out.codes.data(), out.scales.data());
  }
}

void load_state(std::span<const bf16> stored, std::span<float> out) {
  check_lengths("bf16", stored.size(), out.size());
  HWY_DYNAMIC_DISPATCH(load_bf16)(stored.data(), out.size(), out.data());
}

void load_state(const Split24& stored, std::span<float> out) {
  check_lengths("hi", stored.hi.size(), out.size());
  check_lengths("low", stored.low.size(), out.size());
  HWY_DYNAMIC_DISPATCH(load_24)(stored.hi.data(), stored.low.data(), out.size(), out.data());
}

void load_state(const Blocks8& stored, Companding companding, std::span<float> out) {
  check_blocks(stored, out.size());
  if (companding == Companding::kSigned) {
    HWY_DYNAMIC_DISPATCH(load_signed)
    (stored.codes.data(), stored.scales.data(), out.size(), out.data());
  } else {
    HWY_DYNAMIC_DISPATCH(load_positive)
    (stored.codes.data(), stored.scales.data(), out.size(), out.data());
  }
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
