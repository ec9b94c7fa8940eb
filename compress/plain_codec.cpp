// The families without projectors.
//
//   identity   the core is the gradient, so that the engine moves full gradients
//   none       there is no core, so that nothing crosses; the residual is the whole gradient
#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "kernels/compress.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual.h"

namespace sluiceway {
namespace {

class PlainCodec final : public GradientCodec {
 public:
  PlainCodec(std::string_view family, const CodecRequest& request) : whole_(family == "identity") {
    header_.set_family(family);
    header_.seed = request.config.seed;
    header_.weight_hash = request.weight_hash;
    header_.m = request.m;
    header_.n = request.n;
    header_.dm = whole_ ? request.m : 0;
    header_.dn = whole_ ? request.n : 0;
  }

  std::string_view name() const noexcept override { return whole_ ? "identity" : "none"; }
  CoreShape core() const noexcept override { return {header_.dm, header_.dn}; }
  float default_scale() const noexcept override { return 1.0F; }
  bool learns() const noexcept override { return false; }
  std::uint64_t generation() const noexcept override { return 0; }
  std::size_t scratch_elems() const noexcept override { return 0; }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> /*scratch*/,
                StreamRef stream) const override {
    require_host_stream(stream, name());
    if (whole_) cpu::compress(s, beta, g);
  }

  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> /*scratch*/,
             StreamRef stream) const override {
    require_host_stream(stream, name());
    if (whole_) cpu::decompress(w, low, d, update);
  }

  // Only of "none": the engine refuses a residual of "identity", which leaves nothing.
  void leave_residual(const AnyMatrix& g, MatrixView<float> /*s*/, std::span<float> rows,
                      std::span<float> cols, std::span<float> /*scratch*/,
                      StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::mean_squares(g, rows, cols);
  }

  BiasNorm bias(const AnyMatrix& g, std::span<float> /*scratch*/, StreamRef stream) const override {
    require_host_stream(stream, name());
    const double squares = cpu::overflow_scan(g).sum_squares;
    return {.bias_sq = whole_ ? 0 : squares, .grad_sq = squares};
  }

  RefreshOutcome refresh(const AnyMatrix& /*g*/, const RefreshOptions& /*options*/,
                         ProjectorLearner& /*learner*/, const Moments& /*moments*/,
                         std::span<float> /*scratch*/, StreamRef /*stream*/) override {
    return {};
  }

  std::vector<std::byte> save() const override { return write_codec_state(header_, {}, {}); }
  void load(std::span<const std::byte> state) override { check(state); }
  void check(std::span<const std::byte> state) const override { read_codec_state(state, header_); }

 private:
  const bool whole_;
  CodecStateHeader header_;
};

}  // namespace

std::unique_ptr<GradientCodec> make_plain(std::string_view family, const CodecRequest& request) {
  return std::make_unique<PlainCodec>(family, request);
}

}  // namespace sluiceway
