// Codecs for tests, and the dense P and Q that a codec of that configuration must have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compress/codec_families.h"
#include "compress/gradient_codec.h"
#include "compress/projector.h"
#include "kernels/base/error.h"
#include "tests/support/matrix.h"
#include "tests/support/projector_fixture.h"

namespace sluiceway::test {

inline constexpr std::uint64_t kWeight = 0xC0FFEE;  // Stands for a name's hash.

inline Budget unlimited() {
  return Budget({Budget::kUnlimited, Budget::kUnlimited, Budget::kUnlimited, Budget::kUnlimited});
}

struct DensePair {
  MatrixF64 p, q;
};

inline MatrixF64 dense_identity(std::int64_t size) {
  MatrixF64 out(size, size);
  for (std::int64_t i = 0; i < size; ++i) out(i, i) = 1;
  return out;
}

// P and Q as drawn for generation `generation`, before anything is learned.
inline DensePair drawn_pair(const CodecConfig& config, std::int64_t m, std::int64_t n,
                            std::uint64_t generation = 0, std::uint64_t weight = kWeight) {
  Budget budget = unlimited();
  const std::string family = resolve_codec(config.name);
  const DrawKey key{config.seed, generation, weight};
  if (family == "identity") return {dense_identity(m), dense_identity(n)};
  if (family == "block_random") {
    const BlockProjector pair(m, n, config.block, config.ratio, key, budget);
    return {dense(pair.p()), dense(pair.q())};
  }
  const SparseProjector pair(sparse_dims(config, m, n), config.nnz, key, budget);
  return {dense(pair.p()), dense(pair.q())};
}

inline std::vector<float> scratch_of(const GradientCodec& codec) {
  return std::vector<float>(codec.scratch_elems(), -1e30F);  // Poison.
}

// Core-shaped moments in memory of their own.
struct OwnedMoments {
  Matrix m, v;
  explicit OwnedMoments(CoreShape core) : m(core.rows, core.cols), v(core.rows, core.cols) {}
  Moments view() { return {m.view(), v.view()}; }
};

// A gradient as fine-tuning has them: a few strong directions and noise.
inline Matrix low_rank_gradient(Rng& rng, const Matrix& left, const Matrix& right, double noise) {
  Matrix g(left.rows, right.rows);
  const Matrix mix = rng.matrix(left.cols, right.cols);
  for (std::int64_t i = 0; i < g.rows; ++i) {
    for (std::int64_t j = 0; j < g.cols; ++j) {
      double sum = noise * rng.normal();
      for (std::int64_t a = 0; a < left.cols; ++a) {
        for (std::int64_t b = 0; b < right.cols; ++b) sum += left(i, a) * mix(a, b) * right(j, b);
      }
      g(i, j) = static_cast<float>(sum);
    }
  }
  return g;
}

}  // namespace sluiceway::test
