// Block families: groups of rows, each turned by a block with orthonormal columns.
//
//   block_random   blocks drawn from the seed, nothing to store
//   block_pca      each group's leading directions in one calibration gradient
//   svd            one group a side: the gradient's leading singular directions
//   galore         svd of the shorter side, the other left as it is        } baselines of the
//   topk_columns   the columns with the largest norms, all rows            } experiments
//
// P^T P = I and Q^T Q = I, so P P^T keeps the share dm / m of a random direction's energy. An
// update of the core with elements of size 1 becomes one of size sqrt(dm dn / (m n)) = f on the
// weight; default_scale() is the inverse, 1/f, exactly where the groups divide the weight. The
// one-sided baselines keep ratio^2 of their side: a core of the same size.
#include <algorithm>
#include <array>
#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "compress/block_fit.h"
#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "compress/learner.h"
#include "compress/moment_transport.h"
#include "kernels/base/check.h"
#include "kernels/compress.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual_form.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kUnitBlock = 32;  // Any size would do; this one the kernels like.

std::span<const float> values_of(const BlockRows& rows) {
  return {rows.value, static_cast<std::size_t>(rows.rows * rows.kept)};
}

bool is_random(std::string_view family) { return family == "block_random"; }

bool projects_rows(std::string_view family, std::int64_t m, std::int64_t n) {
  return family == "svd" || (family == "galore" && m <= n);
}

bool projects_columns(std::string_view family, std::int64_t m, std::int64_t n) {
  return family == "svd" || family == "topk_columns" || (family == "galore" && m > n);
}

// One group; a gradient has no more directions than its shorter side.
BlockRows dense_layout(std::int64_t rows, std::int64_t other, double ratio) {
  BlockRows layout = block_layout(rows, rows, ratio);
  layout.kept = layout.last_kept = layout.cols = std::min(layout.kept, other);
  return layout;
}

class BlockCodec final : public GradientCodec {
 public:
  BlockCodec(std::string_view family, const CodecRequest& request, Budget& budget)
      : family_(family),
        budget_(budget),
        layouts_(block_layouts(family, request.config, request.m, request.n)),
        projector_(layouts_, budget) {
    const ProjectorDims& dims = projector_.dims();
    header_.set_family(family);
    header_.seed = request.config.seed;
    header_.weight_hash = request.weight_hash;
    header_.m = dims.m;
    header_.n = dims.n;
    header_.dm = dims.dm;
    header_.dn = dims.dn;
    header_.nnz = layouts_.p.block;
    if (is_random(family_)) {
      projector_.draw({header_.seed, 0, header_.weight_hash});
    } else {
      header_.value_count = values_of(projector_.p()).size() + values_of(projector_.q()).size();
    }
  }

  std::string_view name() const noexcept override { return family_; }
  CoreShape core() const noexcept override { return {header_.dm, header_.dn}; }
  float default_scale() const noexcept override { return orthonormal_scale(projector_.dims()); }
  bool learns() const noexcept override { return !is_random(family_); }
  bool wants_calibration() const noexcept override { return learns() && header_.generation == 0; }
  std::uint64_t generation() const noexcept override { return header_.generation; }

  std::size_t scratch_elems() const noexcept override { return block_scratch_elems(layouts_); }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> scratch,
                StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::compress(s, beta, g, projector_.p(), projector_.q(), scratch);
  }

  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> scratch,
             StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::decompress(w, low, d, projector_.p(), projector_.q(), update, scratch);
  }

  void leave_residual(const AnyMatrix& g, MatrixView<float> s, std::span<float> rows,
                      std::span<float> cols, std::span<float> scratch,
                      StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::residual_form(g, s, projector_.p(), projector_.q(), rows, cols, scratch);
  }

  BiasNorm bias(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) const override {
    require_host_stream(stream, name());
    return cpu::bias_norm(g, projector_.p(), projector_.q(), scratch);
  }

  RefreshOutcome refresh(const AnyMatrix& g, const RefreshOptions& options,
                         ProjectorLearner& learner, const Moments& moments,
                         std::span<float> scratch, StreamRef stream) override;

  std::vector<std::byte> save() const override {
    if (is_random(family_)) return write_codec_state(header_, {}, {});
    return write_codec_state(header_, values_of(projector_.p()), values_of(projector_.q()));
  }
  void load(std::span<const std::byte> state) override;
  void check(std::span<const std::byte> state) const override { read_codec_state(state, header_); }

 private:
  void fit(BlockProjector& next, const AnyMatrix& g, ProjectorLearner& learner,
           StreamRef stream) const;

  const std::string family_;
  Budget& budget_;
  BlockLayouts layouts_;
  BlockProjector projector_;
  CodecStateHeader header_;
};

// Relative bias while P and Q are zeros: all of a gradient. Needs no pass of products.
double lost_without_projectors(const AnyMatrix& g) {
  const ScanResult scan = cpu::overflow_scan(g);
  if (!scan.finite) return std::numeric_limits<double>::quiet_NaN();
  return scan.sum_squares > 0 ? 1 : 0;
}

void BlockCodec::fit(BlockProjector& next, const AnyMatrix& g, ProjectorLearner& learner,
                     StreamRef stream) const {
  if (family_ == "block_pca") {
    fit_block_pca(g, Side::kRows, layouts_.p, next.p_value());
    fit_block_pca(g, Side::kColumns, layouts_.q, next.q_value());
    return;
  }
  const bool rows = projects_rows(family_, g.rows, g.cols);
  const bool columns = projects_columns(family_, g.rows, g.cols);
  if (!rows) fill_unit_blocks(layouts_.p, next.p_value());
  if (!columns) fill_unit_blocks(layouts_.q, next.q_value());
  if (family_ == "topk_columns") return fit_top_columns(g, layouts_.q, next.q_value());
  const MatrixView<float> p(next.p_value().data(), rows ? g.rows : 0, rows ? header_.dm : 0);
  const MatrixView<float> q(next.q_value().data(), columns ? g.cols : 0, columns ? header_.dn : 0);
  learner.leading_directions(g, p, q, header_.seed ^ header_.weight_hash, stream);
}

RefreshOutcome BlockCodec::refresh(const AnyMatrix& g, const RefreshOptions& options,
                                   ProjectorLearner& learner, const Moments& moments,
                                   std::span<float> scratch, StreamRef stream) {
  RefreshOutcome outcome;
  if (!learns()) return outcome;
  require_host_stream(stream, name());
  const auto start = std::chrono::steady_clock::now();
  const bool first = wants_calibration();
  outcome.bias_before =
      first ? lost_without_projectors(g) : relative_bias(bias(g, scratch, stream));
  outcome.bias_after = outcome.bias_before;
  // A gradient that is not finite compares false, and teaches nothing; a gradient of zeros neither.
  if (outcome.bias_before > (first ? 0 : options.threshold)) {
    if (first) {
      fit(projector_, g, learner, stream);
    } else {
      BlockProjector next(layouts_, budget_);
      fit(next, g, learner, stream);
      transport_moments(options.transport, moments, projector_.p(), next.p(), projector_.q(),
                        next.q());
      projector_ = std::move(next);
    }
    outcome.bias_after = relative_bias(bias(g, scratch, stream));
    ++header_.generation;
    outcome.refreshed = true;
  }
  outcome.seconds = seconds_since(start);
  return outcome;
}

void BlockCodec::load(std::span<const std::byte> state) {
  const CodecState stored = read_codec_state(state, header_);
  if (is_random(family_)) return;
  const auto p_end = stored.values.begin() + std::ssize(projector_.p_value());
  std::copy(stored.values.begin(), p_end, projector_.p_value().begin());
  std::copy(p_end, stored.values.end(), projector_.q_value().begin());
  header_.generation = stored.header.generation;
}

}  // namespace

bool is_block(std::string_view family) noexcept {
  constexpr std::array<std::string_view, 5> kBlock = {"block_random", "block_pca", "svd", "galore",
                                                      "topk_columns"};
  return std::find(kBlock.begin(), kBlock.end(), family) != kBlock.end();
}

BlockLayouts block_layouts(std::string_view family, const CodecConfig& config, std::int64_t m,
                           std::int64_t n) {
  if (is_random(family) || family == "block_pca") {
    return {block_layout(m, config.block, config.ratio),
            block_layout(n, config.block, config.ratio)};
  }
  const bool rows = projects_rows(family, m, n), columns = projects_columns(family, m, n);
  const double ratio = rows && columns ? config.ratio : config.ratio * config.ratio;
  return {rows ? dense_layout(m, n, ratio) : block_layout(m, kUnitBlock, 1.0),
          columns ? dense_layout(n, m, ratio) : block_layout(n, kUnitBlock, 1.0)};
}

std::size_t block_scratch_elems(const BlockLayouts& layouts) noexcept {
  const auto& [p, q] = layouts;
  return static_cast<std::size_t>(
      std::max({compress_scratch_elems(p, q), decompress_scratch_elems(p, q),
                bias_norm_scratch_elems(p, q)}));
}

std::unique_ptr<GradientCodec> make_block(std::string_view family, const CodecRequest& request,
                                          Budget& budget) {
  return std::make_unique<BlockCodec>(family, request, budget);
}

}  // namespace sluiceway
