// Rounds AdamW's states to fewer bytes, and reads them back.
//
//   format    of        bytes an element   stored value
//   bf16      m, v, w   2                  the upper half of an f32
//   24 bits   w         3                  hi and low: the upper 24 bits of an f32
//   8 bits    m         1 and 4 / 256      s sign(c) (|c| / 127)^4,  c in [-127, 127]
//   8 bits    v         1 and 4 / 256      s (c / 255)^8,            c in [0, 255]
//
// s is the largest magnitude of a block of 256 elements. Neighbours differ by 3 % at the top, in m
// and in v; where m is 1e-4 of s, by 31 %, and where sqrt(v) is 1e-4 of sqrt(s), it by 16 %.
// hi is the bf16 nearest to the 24 bits, so that the device computes with hi as it is.
//
// Rounding: up or down at random, with the value as its mean. So a moment without a gradient decays
//           to zero as it does in f32, where rounding to nearest would keep it for ever, and a
//           small change of a weight is not lost. Two exceptions, of at most one step:
//             v above zero has c >= 1: m / (sqrt(0) + eps) would be a huge step
//             w whose low byte would be 0x80 takes 0x7F or 0x81: hi would be ambiguous
//           Without noise: to nearest; then the bf16 nearest to a stored w is that nearest to w.
//           A stored value is stored again as itself, so saved states load without a change.
// Noise:    one draw of 16 bits an element serves all states of a tensor in a step, since Philox
//           costs as much as the rest. Each state takes the draw times an odd number of its own,
//           modulo 2^16, which is as uniform. The three numbers were searched for: for each pair,
//           the shortest vector of the lattice of both is 0.97 of the longest possible.
// Numerics: f32, each operation rounded by itself: equal bits on every instruction set but for
//           sqrt's last digit, which no code depends on. A block whose s is below the least normal
//           f32 is stored as zeros. In 8 bits an infinity is stored as the largest f32; a NaN
//           spoils its block.
// Shapes:   n elements; codes, scales and noise have ceil(n / 256) whole blocks, hi, low, bf16 n.
// Errors:   InvalidArgument, naming both lengths; nothing was written.
// Cost:     reads or writes 4 bytes an element and what is stored; store also reads 2 of noise.
// Source:   8-bit moments in blocks: Dettmers et al., arXiv 2110.02861; companding and weights of
//           24 bits: FlashOptim, arXiv 2602.23349, which takes 2x / (1 + |x|) for m, sqrt for v and
//           rounds to nearest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"

namespace sluiceway {

inline constexpr std::size_t kStateBlock = 256;  // Elements that share a scale.

struct Blocks8 {
  std::span<std::uint8_t> codes;  // A signed code is an int8.
  std::span<float> scales;        // One per block.
};

struct Split24 {
  std::span<bf16> hi;
  std::span<std::uint8_t> low;
};

// How 8 bits are read.
enum class Companding : std::uint8_t { kSigned, kPositive };  // For m, and for v.

struct RoundingNoise {
  std::span<const std::uint16_t> bits;  // Empty: to nearest.
  std::uint16_t multiplier = 1;
};
// Of exp_avg, exp_avg_sq and master.
inline constexpr std::uint16_t kNoiseMultipliers[] = {46277, 32527, 1};

}  // namespace sluiceway

namespace sluiceway::cpu {

void store_state(std::span<const float> x, const RoundingNoise& noise, std::span<bf16> out);
void store_state(std::span<const float> x, const RoundingNoise& noise, const Split24& out);
void store_state(std::span<const float> x, Companding companding, const RoundingNoise& noise,
                 const Blocks8& out);

void load_state(std::span<const bf16> stored, std::span<float> out);
void load_state(const Split24& stored, std::span<float> out);
void load_state(const Blocks8& stored, Companding companding, std::span<float> out);

}  // namespace sluiceway::cpu
