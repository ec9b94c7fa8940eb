// Counter-based random bits: word q of a key is a pure function of (key, q), on every backend.
//
//   Philox4x32-10   [Salmon 2011] "Parallel random numbers: as easy as 1, 2, 3", SC'11
//
// Mapping, for code that needs the same bits elsewhere (a CUDA kernel, another language):
//
//   key words (k0, k1)   = first two words of philox(counter {step lo, step hi, purpose, 0},
//                                                    key {seed lo, seed hi})
//   stream word q (u32)  = word w of
//                          philox(counter {b lo, b hi, tensor lo, tensor hi}, key {k0, k1})
//                          with b = 16 (q / 64) + q % 16 and w = (q % 64) / 16
//   16 bits of element i = half i % 2 (low half first) of stream word i / 2
//   32 bits of element i = stream word i
//
// So 16 adjacent blocks fill 64 words, and SIMD code of up to 16 lanes stores without shuffles.
//
// Numerics: integers only; equal bits on every instruction set and under any tiling.
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/base/stream_ref.h"

namespace sluiceway {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr std::uint32_t kPhiloxM0 = 0xD2511F53U;  // Multipliers and Weyl constants
inline constexpr std::uint32_t kPhiloxM1 = 0xCD9E8D57U;  // of [Salmon 2011].
inline constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9U;
inline constexpr std::uint32_t kPhiloxW1 = 0xBB67AE85U;
inline constexpr int kPhiloxRounds = 10;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter c, PhiloxKey k) noexcept {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxM0} * c[0];
    const std::uint64_t p1 = std::uint64_t{kPhiloxM1} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k = {k[0] + kPhiloxW0, k[1] + kPhiloxW1};
  }
  return c;
}

// Names one stream of random bits. Two uses that must be independent differ in `purpose`.
struct NoiseKey {
  std::uint64_t seed = 0;    // The run's seed.
  std::uint64_t step = 0;    // Committed steps, so that a resumed run draws the same bits.
  std::uint64_t tensor = 0;  // stable_hash() of the weight's name.
  std::uint32_t purpose = 0;
};

// The part of a key that every block shares; derive it once a call, not for every element.
constexpr PhiloxKey philox_key(const NoiseKey& key) noexcept {
  const PhiloxCounter derived = philox4x32_10(
      {static_cast<std::uint32_t>(key.step), static_cast<std::uint32_t>(key.step >> 32),
       key.purpose, 0},
      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)});
  return {derived[0], derived[1]};
}

// The definition, one word at a time; the kernels below give the same words many times faster.
constexpr std::uint32_t noise_word(const NoiseKey& key, std::uint64_t q) noexcept {
  const std::uint64_t block = q / 64 * 16 + q % 16;
  const PhiloxCounter words = philox4x32_10(
      {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
       static_cast<std::uint32_t>(key.tensor), static_cast<std::uint32_t>(key.tensor >> 32)},
      philox_key(key));
  return words[static_cast<std::size_t>(q % 64 / 16)];
}

constexpr std::uint16_t noise_16(const NoiseKey& key, std::uint64_t i) noexcept {
  return static_cast<std::uint16_t>(noise_word(key, i / 2) >> (16 * (i % 2)));
}

// 64 bits of a name, equal on every machine and in every release (XXH3, seed 0).
std::uint64_t stable_hash(std::string_view name) noexcept;

}  // namespace sluiceway

namespace sluiceway::cpu {

// Writes the 32 or 16 bits of element first + i to out[i].
void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint32_t> out);
void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint16_t> out);

}  // namespace sluiceway::cpu

namespace sluiceway::cuda {

// Enqueues on `stream`; `out` is device memory. Throws Unavailable in a build without CUDA.
void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint32_t> out,
               StreamRef stream);
void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint16_t> out,
               StreamRef stream);

}  // namespace sluiceway::cuda

namespace sluiceway {

// Runs on the device of `stream`. Only this function chooses between CPU and CUDA.
inline void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint32_t> out,
                      StreamRef stream) {
  if (stream.is_host()) return cpu::fill_bits(key, first, out);
  cuda::fill_bits(key, first, out, stream);
}
inline void fill_bits(const NoiseKey& key, std::uint64_t first, std::span<std::uint16_t> out,
                      StreamRef stream) {
  if (stream.is_host()) return cpu::fill_bits(key, first, out);
  cuda::fill_bits(key, first, out, stream);
}

}  // namespace sluiceway
