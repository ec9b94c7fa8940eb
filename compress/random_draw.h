// The random numbers of projectors: pure functions of a key and of a row or group index.
//
// Numerics: positions and signs are integers, equal on every machine. Orthonormal blocks are
//           Gaussian in double and factored by Householder reflections; they are equal from run to
//           run of one build, and to rounding between builds. So are normal values.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/philox.h"

namespace sluiceway {

// Which draw of a weight; the purpose of its NoiseKey.
enum class DrawPurpose : std::uint32_t {
  kSparseP = 0x70726F01,
  kSparseQ = 0x70726F02,
  kBlockP = 0x70726F03,
  kBlockQ = 0x70726F04,
};

struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t generation = 0;  // A refresh draws anew.
  std::uint64_t weight_hash = 0;
  std::uint64_t q_hash = 0;  // In its place for Q, where weights share one; 0: none do.

  DrawKey of_q() const noexcept {
    return {seed, generation, q_hash == 0 ? weight_hash : q_hash, q_hash};
  }
};

// What the values of a sparse row start from; r nonzeros a row.
enum class SparseInit : std::uint8_t {
  kSign,    // +-1/sqrt(r): every row has length 1.
  kNormal,  // N(0, 1/r).
};
SparseInit parse_sparse_init(std::string_view name);  // "sign", "normal"

// Row `row` of a sparse projector: index.size() positions in [0, cols), ascending, every set of
// them equally likely; they do not depend on `init`.
void draw_sparse_row(const DrawKey& key, DrawPurpose purpose, std::int64_t row, std::int64_t cols,
                     SparseInit init, std::span<std::int32_t> index, std::span<float> value);

// Group `group` of a block projector: `rows` x `cols` with orthonormal columns, uniform over all
// such matrices, row-major with `stride`. rows <= kMaxBlock, cols <= rows.
inline constexpr std::int64_t kMaxBlock = 256;
void draw_orthonormal(const DrawKey& key, DrawPurpose purpose, std::int64_t group,
                      std::int64_t rows, std::int64_t cols, float* value, std::int64_t stride);

}  // namespace sluiceway
