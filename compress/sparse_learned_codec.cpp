// The family "sparse_learned": the paper's projectors, r nonzeros a row, values learned.
//
// Positions are drawn without replacement in each row; values start as +-1/sqrt(r), which the paper
// offers beside N(0, 1/r): every row then has length 1 and the relative bias of the random pair is
// the smaller one, sqrt((1 + m/dm)(1 + n/dn) - 1) on average. Until its first refresh a codec has
// such a random pair, and the first refresh follows the same rule as every other.
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

namespace sluiceway {
namespace {

double relative_bias(const BiasNorm& norm) {
  return norm.grad_sq == 0 ? 0 : std::sqrt(norm.bias_sq / norm.grad_sq);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

LearnableRows learnable(const SparseRows& rows, std::span<float> value) {
  return {rows.index, value, rows.rows, rows.cols, rows.nnz};
}

std::span<const float> values_of(const SparseRows& rows) {
  return {rows.value, static_cast<std::size_t>(rows.rows * rows.nnz)};
}

class SparseLearnedCodec final : public GradientCodec {
 public:
  SparseLearnedCodec(const CodecRequest& request, Budget& budget)
      : budget_(budget),
        key_{request.config.seed, 0, request.weight_hash},
        nnz_(request.config.nnz),
        projector_(sparse_dims(request.config, request.m, request.n), nnz_, key_, budget) {}

  std::string_view name() const noexcept override { return "sparse_learned"; }
  CoreShape core() const noexcept override { return {projector_.dims().dm, projector_.dims().dn}; }
  float default_scale() const noexcept override { return 1.0F; }
  bool learns() const noexcept override { return true; }
  std::uint64_t generation() const noexcept override { return projector_.generation(); }

  std::size_t scratch_elems() const noexcept override {
    const SparseRows p = projector_.p(), q = projector_.q();
    return static_cast<std::size_t>(
        std::max({compress_scratch_elems(p, projector_.q_columns()), decompress_scratch_elems(p, q),
                  bias_norm_scratch_elems(p, q)}));
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

  BiasNorm bias(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) const override {
    return bias_of(projector_, g, scratch, stream);
  }

  RefreshOutcome refresh(const AnyMatrix& g, const RefreshOptions& options,
                         ProjectorLearner& learner, const Moments& moments,
                         StreamRef stream) override;

  std::vector<std::byte> save() const override {
    return write_codec_state(header(), values_of(projector_.p()), values_of(projector_.q()));
  }
  void load(std::span<const std::byte> state) override;

 private:
  BiasNorm bias_of(const SparseProjector& projector, const AnyMatrix& g, std::span<float> scratch,
                   StreamRef stream) const {
    require_host_stream(stream, name());
    return cpu::bias_norm(g, projector.p(), projector.q(), projector.q_columns(), scratch);
  }

  SparseProjector draw(std::uint64_t generation) const {
    return {projector_.dims(), nnz_, {key_.seed, generation, key_.weight_hash}, budget_};
  }

  CodecStateHeader header() const noexcept;

  Budget& budget_;
  DrawKey key_;
  std::int64_t nnz_;
  SparseProjector projector_;
};

RefreshOutcome SparseLearnedCodec::refresh(const AnyMatrix& g, const RefreshOptions& options,
                                           ProjectorLearner& learner, const Moments& moments,
                                           StreamRef stream) {
  const auto start = std::chrono::steady_clock::now();
  Buffer scratch(budget_, Tier::kDevice, DeviceId{}, scratch_elems() * sizeof(float),
                 "calibration of projectors", Fill::kNone);
  RefreshOutcome outcome;
  outcome.bias_before = relative_bias(bias(g, scratch.as<float>(), stream));
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
    const double bias_after = relative_bias(bias_of(next, g, scratch.as<float>(), stream));
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

CodecStateHeader SparseLearnedCodec::header() const noexcept {
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
  header.value_count = values_of(projector_.p()).size() + values_of(projector_.q()).size();
  return header;
}

void SparseLearnedCodec::load(std::span<const std::byte> state) {
  const CodecState stored = read_codec_state(state, header());
  SparseProjector loaded = draw(stored.header.generation);
  const auto p_end = stored.values.begin() + static_cast<std::ptrdiff_t>(loaded.p_value().size());
  std::copy(stored.values.begin(), p_end, loaded.p_value().begin());
  std::copy(p_end, stored.values.end(), loaded.q_value().begin());
  loaded.values_changed();
  projector_ = std::move(loaded);
}

}  // namespace

std::unique_ptr<GradientCodec> make_sparse_learned(const CodecRequest& request, Budget& budget) {
  return std::make_unique<SparseLearnedCodec>(request, budget);
}

}  // namespace sluiceway
