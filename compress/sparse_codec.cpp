// Sparse families: r nonzeros a row, at positions drawn without replacement.
//
//   sparse_learned   the paper's projectors, values learned
//   sparse_random    as drawn; nnz = 1 is the count sketch, with normalised columns
//
// Values start as +-1/sqrt(r), which the paper offers beside N(0, 1/r). Every row then has length
// 1, and the relative bias of the random pair is the smaller one, sqrt((1 + m/dm)(1 + n/dn) - 1) on
// average. A codec starts with such a random pair, and its first refresh follows the same rule as
// every other; RefreshOptions::init chooses the initial values of a refresh. With rows of length 1
// an update with elements of size 1 has the same size on the weight, so the scale is 1; the count
// sketch, whose columns are orthonormal, has the 1/f of the block families.
#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/builtin_families.h"
#include "compress/check_config.h"
#include "compress/learner.h"
#include "compress/orthonormal_scale.h"
#include "compress/projected_codec.h"
#include "kernels/base/check.h"
#include "kernels/compress.h"
#include "runtime/device/stream.h"

namespace sluiceway {
namespace {

LearnableRows learnable(const SparseRows& rows, std::span<float> value) {
  return {rows.index, value, rows.rows, rows.cols, rows.nnz};
}

// Leaves a column that no row draws at zero.
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

DrawKey first_key(const CodecRequest& request) {
  const std::uint64_t q_hash = request.family.learns ? 0 : request.config.q_hash;
  return {request.config.seed, 0, request.weight_hash, q_hash};
}

class SparseCodec final : public ProjectedCodec<SparseProjector> {
 public:
  explicit SparseCodec(const CodecRequest& request)
      : ProjectedCodec(request, request.config.nnz,
                       sparse_dims(request.config, request.m, request.n), request.config.nnz,
                       first_key(request), request.device, request.budget),
        nnz_(request.config.nnz) {
    if (learns()) save_values();
    if (!is_sketch()) return;
    edit(projector_, [](SparseProjector& pair) {
      normalize_columns(pair.p(), pair.p_value());
      normalize_columns(pair.q(), pair.q_value());
      pair.values_changed();
    });
  }

  float default_scale() const noexcept override {
    return is_sketch() ? orthonormal_scale(projector_.dims()) : 1.0F;
  }
  std::size_t scratch_elems() const noexcept override {
    return SparseProjector::scratch_elems(projector_.dims(), nnz_);
  }
  std::size_t range_scratch_elems() const noexcept override {
    return SparseProjector::range_scratch_elems(projector_.dims(), nnz_);
  }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> scratch,
                StreamRef stream) const override {
    sluiceway::compress(s, beta, g, projector_.p(), projector_.q_columns(), scratch, stream);
  }

  void load(std::span<const std::byte> state) override {
    const CodecState stored = read_codec_state(state, header_);
    if (!learns()) return;
    set_generation(stored.header.generation);
    edit(projector_, [&](SparseProjector& pair) {
      pair.draw(key_of(generation()), SparseInit::kSign);  // Draws the positions again.
      const auto p_end = stored.values.begin() + std::ssize(pair.p_value());
      std::copy(stored.values.begin(), p_end, pair.p_value().begin());
      std::copy(p_end, stored.values.end(), pair.q_value().begin());
      pair.values_changed();
    });
  }

 protected:
  BiasNorm measure_bias(const AnyMatrix& g, std::span<float> scratch,
                        StreamRef stream) const override {
    return result().of<BiasNorm>(stream, [&](BiasNorm* to) {
      bias_norm(to, g, projector_.p(), projector_.q(), projector_.q_columns(), scratch, stream);
    });
  }

  std::size_t kept_elems() const noexcept override {
    return learns() ? SparseProjector::kept_elems(projector_.dims(), nnz_) : 0;
  }

  int fit(const AnyMatrix& g, const RefreshOptions& options, ProjectorLearner& learner,
          StreamRef stream) override {
    LearnOptions learn;
    learn.threshold = options.threshold;
    learn.max_steps = options.learn_steps;
    learn.beta = options.beta;
    learn.learning_rate = options.learn_rate;
    wait_for(stream);
    projector_.draw(key_of(generation() + 1), options.init);
    const LearnOutcome outcome =
        learner.learn(g, learnable(projector_.p(), projector_.p_value()),
                      learnable(projector_.q(), projector_.q_value()), learn, stream);
    projector_.values_changed();
    return outcome.steps;
  }

 private:
  DrawKey key_of(std::uint64_t generation) const noexcept {
    return {header_.seed, generation, header_.weight_hash};
  }
  bool is_sketch() const noexcept { return family().leaves_complement(nnz_); }

  const std::int64_t nnz_;
};

void check_sparse(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  SLUICEWAY_CHECK(config.nnz > 0, "codec: nnz is ", config.nnz, ", expected 1 or more");
  if (config.d == 0) return check_ratio(config);
  SLUICEWAY_CHECK(config.d <= std::min(m, n), "codec: d is ", config.d,
                  ", expected at most the smaller side of a ", m, "x", n,
                  " weight; lower d or leave this weight out of target");
}

CodecFamily sparse_family(const char* name) {
  CodecFamily family;
  family.name = name;
  family.offered = true;
  family.has_square_core = true;
  family.check = check_sparse;
  family.core = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    const ProjectorDims dims = sparse_dims(config, m, n);
    return CoreShape{dims.dm, dims.dn};
  };
  family.projector_bytes = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return SparseProjector::bytes(sparse_dims(config, m, n), config.nnz);
  };
  family.scratch_elems = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return SparseProjector::scratch_elems(sparse_dims(config, m, n), config.nnz);
  };
  family.range_scratch_elems = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return SparseProjector::range_scratch_elems(sparse_dims(config, m, n), config.nnz);
  };
  family.project_scratch_elems = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return SparseProjector::project_scratch_elems(sparse_dims(config, m, n), config.nnz);
  };
  family.make = [](const CodecRequest& request) { return std::make_unique<SparseCodec>(request); };
  return family;
}

}  // namespace

CodecFamily sparse_learned_family() {
  CodecFamily family = sparse_family("sparse_learned");
  family.learns = true;
  family.refresh_every = 1000;  // The paper's interval.
  family.kept_elems = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return SparseProjector::kept_elems(sparse_dims(config, m, n), config.nnz);
  };
  family.fit_bytes = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    const ProjectorDims dims = sparse_dims(config, m, n);
    return learn_bytes(m, n, dims.dm, dims.dn, config.nnz);
  };
  return family;
}

CodecFamily sparse_random_family() {
  CodecFamily family = sparse_family("sparse_random");
  family.complement = Complement::kIfOneNonzero;
  return family;
}

}  // namespace sluiceway
