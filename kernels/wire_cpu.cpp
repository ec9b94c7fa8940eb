#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/wire_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <bit>
#include <cstring>
#include <limits>

#include "kernels/array_checks.h"
#include "kernels/overflow_scan-inl.h"
#include "kernels/wire.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

inline constexpr std::size_t kGroup = static_cast<std::size_t>(kWireGroup);
using WireTag = hn::CappedTag<float, kGroup>;  // Whole vectors make up a group.

HWY_INLINE float group_abs_max(const float* x) {  // Compared as bits, so that a NaN wins.
  const WireTag d;
  const hn::RebindToSigned<WireTag> di;
  const auto mask = hn::Set(di, 0x7FFFFFFF);
  auto largest = hn::Zero(di);
  for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), mask));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

HWY_INLINE void quantise_group(const float* x, float inverse, std::int8_t* codes) {
  const WireTag d;
  const hn::RebindToSigned<WireTag> di;
  const hn::Rebind<std::int8_t, WireTag> d8;
  // Adding 1.5 * 2^23 leaves the integer, rounded to nearest even, in the low mantissa bits.
  const auto magic = hn::Set(d, 0x1.8p23F);
  for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    const auto shifted = hn::Add(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)), magic);
    const auto code = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + i);
  }
}

// Returns the scale: zero, with zero codes, if 1 / scale would exceed f32's range.
HWY_INLINE float pack_group(const float* x, std::int8_t* codes) {
  const float abs_max = group_abs_max(x);
  const float scale = abs_max / 127.0F;
  const bool finite = std::bit_cast<std::uint32_t>(abs_max) < 0x7F800000U;
  const bool normal = scale >= std::numeric_limits<float>::min();
  if (!finite || !normal) {
    std::memset(codes, 0, kGroup);
    return finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  quantise_group(x, 1.0F / scale, codes);
  return scale;
}

// Packs values [0, n) as groups; pads a short last group with zeros.
HWY_INLINE void pack_groups(const float* x, std::size_t n, float* scales, std::int8_t* codes) {
  for (std::size_t i = 0; i < n; i += kGroup, ++scales) {
    if (n - i >= kGroup) {
      *scales = pack_group(x + i, codes + i);
    } else {
      float padded[kGroup] = {};
      std::int8_t padded_codes[kGroup];
      std::memcpy(padded, x + i, (n - i) * sizeof(float));
      *scales = pack_group(padded, padded_codes);
      std::memcpy(codes + i, padded_codes, n - i);
    }
  }
}

ScanResult pack_int8(const float* x, std::size_t n, float* scales, std::int8_t* codes) {
  static_assert(kScanBlock % kGroup == 0);
  RunningScan total;
  for (std::size_t i = 0; i < n; i += kScanBlock) {
    const std::size_t count = HWY_MIN(n - i, kScanBlock);
    const float* block = x + i;
    total.add(block, count, NoSink());
    pack_groups(block, count, scales + i / kGroup, codes + i);  // Reads from the cache.
  }
  return total.result();
}

HWY_INLINE void unpack_group(float scale, const std::int8_t* codes, float* x) {
  const WireTag d;
  const hn::RebindToSigned<WireTag> di;
  const hn::Rebind<std::int8_t, WireTag> d8;
  for (std::size_t i = 0; i < kGroup; i += hn::Lanes(d)) {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, codes + i)));
    hn::StoreU(hn::Mul(code, hn::Set(d, scale)), d, x + i);
  }
}

void unpack_int8(const float* scales, const std::int8_t* codes, float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; i += kGroup, ++scales) {
    if (n - i >= kGroup) {
      unpack_group(*scales, codes + i, x + i);
    } else {
      std::int8_t padded_codes[kGroup] = {};
      float padded[kGroup];
      std::memcpy(padded_codes, codes + i, n - i);
      unpack_group(*scales, padded_codes, padded);
      std::memcpy(x + i, padded, (n - i) * sizeof(float));
    }
  }
}

void unpack_bf16(const bf16* wire, float* x, std::size_t n) {
  const hn::ScalableTag<float> d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    hn::StoreU(load_f32(d, wire + i), d, x + i);
  }
  if (i < n) FirstLanes{n - i}.store(d, FirstLanes{n - i}.load(d, wire + i), x + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {

HWY_EXPORT(pack_int8);
HWY_EXPORT(unpack_int8);
HWY_EXPORT(unpack_bf16);

std::size_t int8_groups(std::size_t elems) {
  return static_cast<std::size_t>(wire_groups(static_cast<std::int64_t>(elems)));
}

}  // namespace

namespace cpu {

ScanResult pack(WireFormat format, std::span<const float> values, std::span<std::byte> wire) {
  check_wire("pack", format, wire, values.size());
  const std::size_t n = values.size();
  switch (format) {
    case WireFormat::kF32:
      return overflow_scan_copy(values, std::span(reinterpret_cast<float*>(wire.data()), n));
    case WireFormat::kBF16:
      return overflow_scan_copy(values, std::span(reinterpret_cast<bf16*>(wire.data()), n));
    case WireFormat::kInt8:
      break;
  }
  float* scales = reinterpret_cast<float*>(wire.data());
  auto* codes = reinterpret_cast<std::int8_t*>(scales + int8_groups(n));
  return HWY_DYNAMIC_DISPATCH(pack_int8)(values.data(), n, scales, codes);
}

void unpack(WireFormat format, std::span<const std::byte> wire, std::span<float> values) {
  check_wire("unpack", format, wire, values.size());
  const std::size_t n = values.size();
  if (n == 0) return;
  switch (format) {
    case WireFormat::kF32:
      std::memcpy(values.data(), wire.data(), wire.size());
      return;
    case WireFormat::kBF16:
      HWY_DYNAMIC_DISPATCH(unpack_bf16)
      (reinterpret_cast<const bf16*>(wire.data()), values.data(), n);
      return;
    case WireFormat::kInt8:
      break;
  }
  const float* scales = reinterpret_cast<const float*>(wire.data());
  const auto* codes = reinterpret_cast<const std::int8_t*>(scales + int8_groups(n));
  HWY_DYNAMIC_DISPATCH(unpack_int8)(scales, codes, values.data(), n);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
