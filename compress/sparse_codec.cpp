// Sparse families: r nonzeros a row, at positions drawn without replacement.
//
//   sparse_learned   the paper's projectors, values learned
//   sparse_random    as they are drawn; nnz = 1 is the count sketch: columns normalised
//
// Values start as +-1/sqrt(r), which the paper offers beside N(0, 1/r): every row then has length 1
// and the relative bias of the random pair is the smaller one, sqrt((1 + m/dm)(1 + n/dn) - 1) on
// average. Until its first refresh a codec has such a random pair, and the first refresh follows
// the same rule as every other. Rows of length 1 also make an update with elements of size 1 one of
// the same size on the weight, so its scale is 1; the count sketch, whose columns are orthonormal,
// has the 1/f of the block families.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>
#include <vector>

#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "compress/learner.h"
#include "compress/moment_transport.h"
#include "kernels/base/check.h"
#include "kernels/compress.h"
#include "kernels/residual_form.h"

namespace sluiceway {
namespace {

LearnableRows learnable(const SparseRows& rows, std::span<float> value) {
  return {rows.index, value, rows.rows, rows.cols, rows.nnz};
}

std::span<const float> values_of(const SparseRows& rows) {
  return {rows.value, static_cast<std::size_t>(rows.rows * rows.nnz)};
}

// A column that no row draws stays zero.
void normalize_columns(const SparseRows& rows, std::span<float> value) {
  std::vector<double> squares(static_cast<std::size_t>(rows.cols));
  for (std::size_t k = 0; k < value.size(); ++k) {
    squares[static_cast<std::size_t>(rows.index[k])] += static_cast<double>(value[k] * value[k]);
  }
  for (std::size_t k = 0; k < value.size(); ++k) {
    const double norm = std::sqrt(squares[static_cast<std::size_t>(rows.index[k])]);
    value[k] = static_cast<float>(static_cast<double>(value[k]) / norm);
  }
}

class SparseCodec final : public GradientCodec {
 public:
  SparseCodec(std::string_view family, const CodecRequest& request, Budget& budget)
      : learned_(family == "sparse_learned"),
        budget_(budget),
        key_{request.config.seed, 0, request.weight_hash},
        nnz_(request.config.nnz),
        projector_(sparse_dims(request.config, request.m, request.n), nnz_, key_, budget) {
    if (!is_sketch()) return;
    normalize_columns(projector_.p(), projector_.p_value());
    normalize_columns(projector_.q(), projector_.q_value());
    projector_.values_changed();
  }

  std::string_view name() const noexcept override {
    return learned_ ? "sparse_learned" : "sparse_random";
  }
  CoreShape core() const noexcept override { return {projector_.dims().dm, projector_.dims().dn}; }
  float default_scale() const noexcept override {
    return is_sketch() ? orthonormal_scale(projector_.dims()) : 1.0F;
  }
  bool learns() const noexcept override { return learned_; }
  std::uint64_t generation() const noexcept override { return projector_.generation(); }

  std::size_t scratch_elems() const noexcept override {
    return sparse_scratch_elems(projector_.dims(), nnz_);
  }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> scratch,
                StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::compress(s, beta, g, projector_.p(), projector_.q_columns(), scratch);
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
    return bias_of(projector_, g, scratch, stream);
  }

  RefreshOutcome refresh(const AnyMatrix& g, const RefreshOptions& options,
                         ProjectorLearner& learner, const Moments& moments,
                         std::span<float> scratch, StreamRef stream) override;

  std::vector<std::byte> save() const override {
    if (!learned_) return write_codec_state(header(), {}, {});
    return write_codec_state(header(), values_of(projector_.p()), values_of(projector_.q()));
  }
  void load(std::span<const std::byte> state) override;
  void check(std::span<const std::byte> state) const override { read_codec_state(state, header()); }

 private:
  BiasNorm bias_of(const SparseProjector& projector, const AnyMatrix& g, std::span<float> scratch,
                   StreamRef stream) const {
    require_host_stream(stream, name());
    return cpu::bias_norm(g, projector.p(), projector.q(), projector.q_columns(), scratch);
  }

  SparseProjector draw(std::uint64_t generation) const {
    return {projector_.dims(), nnz_, {key_.seed, generation, key_.weight_hash}, budget_};
  }

  bool is_sketch() const noexcept { return !learned_ && nnz_ == 1; }
  CodecStateHeader header() const noexcept;

  const bool learned_;
  Budget& budget_;
  DrawKey key_;
  std::int64_t nnz_;
  SparseProjector projector_;
};

RefreshOutcome SparseCodec::refresh(const AnyMatrix& g, const RefreshOptions& options,
                                    ProjectorLearner& learner, const Moments& moments,
                                    std::span<float> scratch, StreamRef stream) {
  RefreshOutcome outcome;
  if (!learned_) return outcome;
  const auto start = std::chrono::steady_clock::now();
  outcome.bias_before = relative_bias(bias(g, scratch, stream));
  outcome.bias_after = outcome.bias_before;
  // A gradient that is not finite compares false, and teaches nothing.
  if (std::isfinite(outcome.bias_before) && outcome.bias_before > options.threshold) {
    SparseProjector next = draw(generation() + 1);
    LearnOptions learn;
    learn.threshold = options.threshold;
    learn.max_steps = options.learn_steps;
    outcome.learn_steps = learner
                              .learn(g, learnable(next.p(), next.p_value()),
                                     learnable(next.q(), next.q_value()), learn, stream)
                              .steps;
    next.values_changed();
    const double bias_after = relative_bias(bias_of(next, g, scratch, stream));
    if (std::isfinite(bias_after)) {
      transport_moments(options.transport, moments, projector_.p(), next.p(), projector_.q(),
                        next.q());
      projector_ = std::move(next);
      outcome.bias_after = bias_after;
      outcome.refreshed = true;
    }
  }
  outcome.seconds = seconds_since(start);
  return outcome;
}

CodecStateHeader SparseCodec::header() const noexcept {
  CodecStateHeader header;
  header.set_family(name());
  header.seed = key_.seed;
  header.weight_hash = key_.weight_hash;
  const ProjectorDims& dims = projector_.dims();
  header.m = dims.m;
  header.n = dims.n;
  header.dm = dims.dm;
  header.dn = dims.dn;
  header.nnz = nnz_;
  header.generation = generation();
  if (learned_) {
    header.value_count = values_of(projector_.p()).size() + values_of(projector_.q()).size();
  }
  return header;
}

void SparseCodec::load(std::span<const std::byte> state) {
  const CodecState stored = read_codec_state(state, header());
  if (!learned_) return;
  SparseProjector loaded = draw(stored.header.generation);
  const auto p_end = stored.values.begin() + static_cast<std::ptrdiff_t>(loaded.p_value().size());
  std::copy(stored.values.begin(), p_end, loaded.p_value().begin());
  std::copy(p_end, stored.values.end(), loaded.q_value().begin());
  loaded.values_changed();
  projector_ = std::move(loaded);
}

}  // namespace

std::size_t sparse_scratch_elems(const ProjectorDims& dims, std::int64_t nnz) noexcept {
  const SparseRows p{nullptr, nullptr, dims.m, dims.dm, std::min(nnz, dims.dm)};
  const SparseRows q{nullptr, nullptr, dims.n, dims.dn, std::min(nnz, dims.dn)};
  const SparseColumns columns{nullptr, nullptr, nullptr, dims.n, dims.dn};
  return static_cast<std::size_t>(
      std::max({compress_scratch_elems(p, columns), decompress_scratch_elems(p, q),
                bias_norm_scratch_elems(p, q)}));
}

std::unique_ptr<GradientCodec> make_sparse(std::string_view family, const CodecRequest& request,
                                           Budget& budget) {
  return std::make_unique<SparseCodec>(family, request, budget);
}

}  // namespace sluiceway
