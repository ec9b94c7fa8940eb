// Codecs for tests, and the dense P and Q that a codec of the same configuration must have.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compress/block_codec.h"
#include "compress/gradient_codec.h"
#include "compress/projector.h"
#include "kernels/base/error.h"
#include "runtime/memory/budget.h"
#include "tests/support/matrix.h"
#include "tests/support/projector_fixture.h"

namespace sluiceway::test {

inline constexpr std::uint64_t kWeight = 0xC0FFEE;  // Stands for a name's hash.

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
  Budget budget = Budget::unlimited();
  const std::string family = resolve_codec(config.name);
  const DrawKey key{config.seed, generation, weight};
  if (family == "identity") return {dense_identity(m), dense_identity(n)};
  if (family == "block_random") {
    BlockProjector pair(grouped_layouts(config, m, n), DeviceId::host(), budget);
    pair.draw(key);
    return {dense(pair.p()), dense(pair.q())};
  }
  const SparseProjector pair(sparse_dims(config, m, n), config.nnz, key, DeviceId::host(), budget);
  return {dense(pair.p()), dense(pair.q())};
}

inline BlockLayouts layouts_of(std::string_view family, const CodecConfig& config, std::int64_t m,
                               std::int64_t n) {
  if (family == "block_pca") return grouped_layouts(config, m, n);
  const bool svd = family == "svd", galore = family == "galore";
  return dense_layouts(svd || (galore && m <= n), !galore || m > n, config, m, n);
}

// P and Q of a fitted block family, read from the codec's saved state.
inline DensePair stored_pair(const GradientCodec& codec, const CodecConfig& config, std::int64_t m,
                             std::int64_t n) {
  BlockLayouts layouts = layouts_of(codec.name(), config, m, n);
  const std::vector<std::byte> state = codec.save();
  std::vector<float> values(static_cast<std::size_t>(m * layouts.p.kept + n * layouts.q.kept));
  const std::size_t bytes = values.size() * sizeof(float);
  if (state.size() < bytes) throw Corrupt("stored_pair: the state holds no values");
  std::memcpy(values.data(), state.data() + (state.size() - bytes), bytes);
  layouts.p.value = values.data();
  layouts.q.value = values.data() + m * layouts.p.kept;
  return {dense(layouts.p), dense(layouts.q)};
}

inline std::vector<float> scratch_of(const GradientCodec& codec) {
  return std::vector<float>(codec.refresh_scratch_elems(), -1e30F);  // Poison.
}

// Core-shaped moments with memory of their own.
struct OwnedMoments {
  Matrix m, v;
  explicit OwnedMoments(CoreShape core) : m(core.rows, core.cols), v(core.rows, core.cols) {}
  Moments view() { return {m.view(), v.view(), {}}; }
};

// A gradient like those of fine-tuning: a few strong directions and noise.
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
