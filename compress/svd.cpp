// svd: the leading singular directions of one calibration gradient, one group a side.
// galore: the directions of the shorter side only; a baseline of the experiments.
#include "compress/block_codec.h"
#include "compress/block_fit.h"
#include "compress/builtin_families.h"
#include "compress/learner.h"

namespace sluiceway {
namespace {

BlockLayouts both_sides(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return dense_layouts(true, true, config, m, n);
}

BlockLayouts shorter_side(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return dense_layouts(m <= n, m > n, config, m, n);
}

// An empty matrix stands for a side that is not projected, which keeps unit blocks.
void fit_sides(bool rows, bool columns, BlockProjector& to, const AnyMatrix& g,
               ProjectorLearner& learner, std::uint64_t seed, StreamRef stream) {
  if (!rows || !columns) {
    edit(to, [&](BlockProjector& here) {
      if (!rows) fill_unit_blocks(here.p(), here.p_value());
      if (!columns) fill_unit_blocks(here.q(), here.q_value());
    });
  }
  const MatrixView<float> p(to.p_value().data(), rows ? g.rows : 0, rows ? to.dims().dm : 0);
  const MatrixView<float> q(to.q_value().data(), columns ? g.cols : 0, columns ? to.dims().dn : 0);
  learner.leading_directions(g, p, q, seed, stream);
}

void fit_both(BlockProjector& to, const AnyMatrix& g, ProjectorLearner& learner, std::uint64_t seed,
              StreamRef stream) {
  fit_sides(true, true, to, g, learner, seed, stream);
}

void fit_shorter(BlockProjector& to, const AnyMatrix& g, ProjectorLearner& learner,
                 std::uint64_t seed, StreamRef stream) {
  fit_sides(g.rows <= g.cols, g.rows > g.cols, to, g, learner, seed, stream);
}

}  // namespace

CodecFamily svd_family() {
  CodecFamily family = block_family("svd", {both_sides, fit_both, true});
  family.fit_bytes = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    const BlockLayouts pair = both_sides(config, m, n);
    return leading_directions_bytes(m, n, pair.p.cols, pair.q.cols);
  };
  return family;
}

CodecFamily galore_family() {
  CodecFamily family = block_family("galore", {shorter_side, fit_shorter, true});
  family.fit_bytes = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    const BlockLayouts pair = shorter_side(config, m, n);
    return leading_directions_bytes(m, n, m <= n ? pair.p.cols : 0, m > n ? pair.q.cols : 0);
  };
  family.offered = false;
  return family;
}

}  // namespace sluiceway
