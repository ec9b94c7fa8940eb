// The definitions of noise.h and perturb.h, one element at a time by std::fma, which kernels must
// equal.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/base/dtype.h"
#include "kernels/noise.h"
#include "kernels/perturb.h"

namespace sluiceway::test {

// Equal bits, or two NaNs.
template <typename T>
bool same(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(to_float(a)) && std::isnan(to_float(b)));
}

inline float reference_gaussian(const NoiseKey& key, std::uint64_t i) {
  const std::uint64_t at = i / 32 * 32 + i % 16;
  const std::uint32_t u = noise_word(key, at), v = noise_word(key, at + 16);
  const float uniform =
      std::fma(static_cast<float>(static_cast<std::int32_t>(u >> 1)), 0x1p-31F, 0x1p-32F);
  int exponent = 0;
  float m = 2.0F * std::frexp(uniform, &exponent);  // In [1, 2).
  exponent -= 1;
  if (m >= 0x1.6a09e6p0F) m /= 2.0F, exponent += 1;
  const float f = m - 1.0F;
  float terms = kLogTerms[7];
  for (int k = 6; k >= 0; --k) terms = std::fma(terms, f, kLogTerms[static_cast<std::size_t>(k)]);
  const float square = f * f;
  const float log = std::fma(static_cast<float>(exponent), kLn2, std::fma(square, terms, f));
  const float r = std::sqrt(-2.0F * log);

  // Quarters of a turn, to the nearest; halves go up.
  const auto quarter = static_cast<unsigned>(((std::uint64_t{v} + (1U << 29)) >> 30) % 4);
  const auto rest = static_cast<std::int32_t>(v - (quarter << 30));
  const float t = static_cast<float>(rest) * 0x1p-32F, s = t * t;
  float sine = kSinTerms[3], cosine = kCosTerms[3];
  for (int k = 2; k >= 0; --k) {
    sine = std::fma(sine, s, kSinTerms[static_cast<std::size_t>(k)]);
    cosine = std::fma(cosine, s, kCosTerms[static_cast<std::size_t>(k)]);
  }
  sine = t * sine;
  cosine = std::fma(s, cosine, 1.0F);
  // Cosine of the angle, one quarter on for each.
  const float along[4] = {cosine, -sine, -cosine, sine};
  const float across[4] = {sine, cosine, -sine, -cosine};
  return r * (i % 32 < 16 ? along[quarter] : across[quarter]);
}

inline float reference_z(NoiseFamily family, const NoiseKey& key, std::uint64_t i) {
  if (family == NoiseFamily::kRademacher) {
    const std::uint64_t e = i % 2048;
    const std::uint32_t word = noise_word(key, 64 * (i / 2048) + 16 * (e / 512) + e % 16);
    return (word >> (31 - e % 512 / 16) & 1U) != 0 ? -1.0F : 1.0F;
  }
  if (family == NoiseFamily::kByteQuantile) {
    const std::uint64_t e = i % 256;
    const std::uint32_t word = noise_word(key, 64 * (i / 256) + 16 * (e / 64) + e % 16);
    const std::uint32_t byte = word >> (8 * (e % 64 / 16)) & 0xFFU;
    return byte < 128 ? kNoiseQuantiles[byte] : -kNoiseQuantiles[byte - 128];
  }
  return reference_gaussian(key, i);
}

inline float reference_theta(float w, const Theta& theta, std::uint64_t k) {
  float a = w;
  for (const PendingUpdate& update : theta.pending) {
    a = std::fma(update.scale, reference_z(theta.family, update.key, theta.first + k), a);
  }
  return theta.gamma * a;
}

inline bf16 reference_stochastic(float x, std::uint32_t noise) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return from_float<bf16>(x);
  return {static_cast<std::uint16_t>((bits + noise) >> 16)};
}

}  // namespace sluiceway::test
