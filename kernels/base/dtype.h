// The 16-bit storage types, and the enumeration that names every element type.
//
// Numerics: to_float is exact; from_float rounds to nearest, ties to even, and keeps NaN a NaN.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluiceway {

struct bf16 {  // Upper half of an IEEE binary32.
  std::uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;
};

struct f16 {  // IEEE binary16.
  std::uint16_t bits = 0;
  friend bool operator==(f16, f16) = default;
};

enum class DType : std::uint8_t { kF32, kF16, kBF16 };

constexpr std::size_t size_bytes(DType dtype) noexcept { return dtype == DType::kF32 ? 4 : 2; }

constexpr std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <typename T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

constexpr float to_float(float x) noexcept { return x; }

constexpr float to_float(bf16 x) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

constexpr float to_float(f16 x) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = x.bits & 0x3FFU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  if (exponent == 0) {  // Zero and subnormals: mantissa * 2^-24, exact in binary32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

template <typename T>
constexpr T from_float(float x) noexcept;

template <>
constexpr float from_float<float>(float x) noexcept {
  return x;
}

template <>
constexpr bf16 from_float<bf16>(float x) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((u >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16)};
}

template <>
constexpr f16 from_float<f16>(float x) noexcept {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t magnitude = u & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return {static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU))};
  }
  if (magnitude >= 0x477FF000U) return {static_cast<std::uint16_t>(sign | 0x7C00U)};
  if (magnitude < 0x38800000U) {  // Below 2^-14: the sum with 0.5 rounds to a multiple of 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    const std::uint32_t rounded = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
    return {static_cast<std::uint16_t>(sign | rounded)};
  }
  const std::uint32_t odd = (magnitude >> 13) & 1U;
  return {static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xFFFU + odd) >> 13))};
}

}  // namespace sluiceway
