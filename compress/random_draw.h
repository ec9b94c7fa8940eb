// The random numbers of projectors: pure functions of a key and of a global row or group index.
//
// Nothing depends on how rows are split between devices: a shard that starts at row r draws what
// the whole weight has from row r on.
//
// Numerics: positions and signs are integers, equal on every machine. Orthonormal blocks are
//           Gaussian in double and factored by Householder reflections; they are equal from run to
//           run of one build, and to rounding between builds.
#pragma once

#include <cstdint>
#include <span>

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
};

// Row `row` of a sparse projector: index.size() positions in [0, cols), ascending, every set of
// them equally likely, with values +-1/sqrt(index.size()).
void draw_sparse_row(const DrawKey& key, DrawPurpose purpose, std::int64_t row, std::int64_t cols,
                     std::span<std::int32_t> index, std::span<float> value);

// Group `group` of a block projector: `rows` x `cols` with orthonormal columns, uniform over all
// such matrices, row-major with `stride`. rows <= kMaxBlock, cols <= rows.
inline constexpr std::int64_t kMaxBlock = 256;
void draw_orthonormal(const DrawKey& key, DrawPurpose purpose, std::int64_t group,
                      std::int64_t rows, std::int64_t cols, float* value, std::int64_t stride);

}  // namespace sluiceway
