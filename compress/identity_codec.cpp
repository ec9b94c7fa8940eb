// The family "identity": the core is the gradient, so that the engine moves full gradients.
#include <cmath>

#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "kernels/compress.h"

namespace sluiceway {
namespace {

template <typename T>
double sum_squares(MatrixView<const T> g) {
  double sum = 0;
  for (std::int64_t i = 0; i < g.rows; ++i) {
    for (std::int64_t j = 0; j < g.cols; ++j) {
      const double x = to_float(g.row(i)[j]);
      sum += x * x;
    }
  }
  return sum;
}

double sum_squares(const AnyMatrix& g) {
  switch (g.dtype) {
    case DType::kF16:
      return sum_squares(g.as<const f16>());
    case DType::kBF16:
      return sum_squares(g.as<const bf16>());
    case DType::kF32:
      break;
  }
  return sum_squares(g.as<const float>());
}

class IdentityCodec final : public GradientCodec {
 public:
  explicit IdentityCodec(const CodecRequest& request) {
    header_.set_family(name());
    header_.seed = request.config.seed;
    header_.weight_hash = request.weight_hash;
    header_.m = header_.dm = request.m;
    header_.n = header_.dn = request.n;
  }

  std::string_view name() const noexcept override { return "identity"; }
  CoreShape core() const noexcept override { return {header_.m, header_.n}; }
  float default_scale() const noexcept override { return 1.0F; }
  bool learns() const noexcept override { return false; }
  std::uint64_t generation() const noexcept override { return 0; }
  std::size_t scratch_elems() const noexcept override { return 0; }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> /*scratch*/,
                StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::compress(s, beta, g);
  }

  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> /*scratch*/,
             StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::decompress(w, low, d, update);
  }

  BiasNorm bias(const AnyMatrix& g, std::span<float> /*scratch*/, StreamRef stream) const override {
    require_host_stream(stream, name());
    return {.bias_sq = 0, .grad_sq = sum_squares(g)};
  }

  RefreshOutcome refresh(const AnyMatrix& /*g*/, const RefreshOptions& /*options*/,
                         ProjectorLearner& /*learner*/, const Moments& /*moments*/,
                         StreamRef /*stream*/) override {
    return {};
  }

  std::vector<std::byte> save() const override { return write_codec_state(header_, {}, {}); }
  void load(std::span<const std::byte> state) override { read_codec_state(state, header_); }

 private:
  CodecStateHeader header_;
};

}  // namespace

std::unique_ptr<GradientCodec> make_identity(const CodecRequest& request) {
  return std::make_unique<IdentityCodec>(request);
}

}  // namespace sluiceway
