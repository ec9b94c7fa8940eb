// Random numbers for projectors: pure functions of a key and of a row or group index.
//
// Numerics: positions and signs are integers, equal on every machine. Orthonormal blocks are
//           Gaussian in double, factored by Householder reflections; they and normal values are
//           equal from run to run of one build, and up to rounding between builds.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/philox.h"

namespace sluiceway {

// Tells the draws of a weight apart; the purpose of its NoiseKey.
enum class DrawPurpose : std::uint32_t {
  kSparseP = 0x70726F01,
  kSparseQ = 0x70726F02,
  kBlockP = 0x70726F03,
  kBlockQ = 0x70726F04,
};

struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t generation = 0;  // A refresh draws new numbers.
  std::uint64_t weight_hash = 0;
  std::uint64_t q_hash = 0;  // Replaces the weight hash for Q if weights share one; 0: they do not.

  DrawKey of_q() const noexcept {
    return {seed, generation, q_hash == 0 ? weight_hash : q_hash, q_hash};
  }
};

// Initial values of a sparse row with r nonzeros.
enum class SparseInit : std::uint8_t {
  kSign,    // +-1/sqrt(r): every row has length 1.
  kNormal,  // N(0, 1/r).
};
SparseInit parse_sparse_init(std::string_view name);  // "sign", "normal"

// Draws row `row` of a sparse projector: index.size() positions in [0, cols), ascending, with every
// set equally likely. The positions do not depend on `init`.
void draw_sparse_row(const DrawKey& key, DrawPurpose purpose, std::int64_t row, std::int64_t cols,
                     SparseInit init, std::span<std::int32_t> index, std::span<float> value);

// Draws group `group` of a block projector: `rows` x `cols` with orthonormal columns, uniform over
// all such matrices, row-major with `stride`. rows <= kMaxBlock, cols <= rows.
inline constexpr std::int64_t kMaxBlock = 256;
void draw_orthonormal(const DrawKey& key, DrawPurpose purpose, std::int64_t group,
                      std::int64_t rows, std::int64_t cols, float* value, std::int64_t stride);

}  // namespace sluiceway
