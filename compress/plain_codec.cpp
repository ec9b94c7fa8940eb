// The families without projectors.
//
//   identity   the core is the gradient, so that the engine moves full gradients
//   none       there is no core, so that nothing crosses; the residual is the whole gradient
#include "compress/builtin_families.h"
#include "compress/codec_state.h"
#include "compress/projector.h"
#include "kernels/base/check.h"
#include "kernels/compress.h"
#include "kernels/decompress_range.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual.h"

namespace sluiceway {
namespace {

CoreShape core_of(bool whole, std::int64_t m, std::int64_t n) {
  return whole ? CoreShape{m, n} : CoreShape{};
}

class PlainCodec final : public GradientCodec {
 public:
  PlainCodec(const CodecRequest& request, bool whole)
      : GradientCodec(request),
        whole_(whole),
        core_(core_of(whole, request.m, request.n)),
        header_(header_of(request,
                          {.m = request.m, .n = request.n, .dm = core_.rows, .dn = core_.cols})) {}

  CoreShape core() const noexcept override { return core_; }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> /*scratch*/,
                StreamRef stream) const override {
    if (whole_) sluiceway::compress(s, beta, g, stream);
  }

  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> /*scratch*/,
             StreamRef stream) const override {
    if (whole_) decompress(w, low, d, update, stream);
  }

  ScanResult decompress_range(const AnyMatrix& s, std::int64_t first, std::span<std::byte> dst,
                              DType dtype, std::span<float> /*scratch*/) const override {
    SLUICEWAY_CHECK(whole_, "decompress_range: codec ", name(),
                    " has no core; use identity for whole gradients");
    SLUICEWAY_CHECK(s.rows == core_.rows && s.cols == core_.cols, "decompress_range: s is ", s.rows,
                    "x", s.cols, ", expected ", core_.rows, "x", core_.cols);
    return cpu::decompress_range(s, first, dst, dtype);
  }

  // Called for "none" only: the engine rejects a residual with "identity", which drops nothing.
  void leave_residual(const AnyMatrix& g, MatrixView<float> /*s*/, const MeansPass& pass,
                      std::span<float> /*scratch*/, StreamRef stream) const override {
    mean_squares(g, pass, 1.0F, stream);
  }

  std::vector<std::byte> save() const override { return write_codec_state(header_, {}, {}); }
  void load(std::span<const std::byte> state) override { check(state); }
  void check(std::span<const std::byte> state) const override { read_codec_state(state, header_); }

 protected:
  BiasNorm measure_bias(const AnyMatrix& g, std::span<float> /*scratch*/,
                        StreamRef stream) const override {
    const auto scan =
        result().of<ScanResult>(stream, [&](ScanResult* to) { overflow_scan(g, to, stream); });
    return {.bias_sq = whole_ ? 0 : scan.sum_squares, .grad_sq = scan.sum_squares};
  }

 private:
  const bool whole_;
  const CoreShape core_;
  const CodecStateHeader header_;
};

CodecFamily plain_family(const char* name, bool whole) {
  CodecFamily family;
  family.name = name;
  family.offered = true;
  family.complement = whole ? Complement::kNever : Complement::kAlways;
  family.core = [whole](const CodecConfig&, std::int64_t m, std::int64_t n) {
    return core_of(whole, m, n);
  };
  family.make = [whole](const CodecRequest& request) {
    return std::make_unique<PlainCodec>(request, whole);
  };
  return family;
}

}  // namespace

CodecFamily identity_family() { return plain_family("identity", true); }

CodecFamily none_family() { return plain_family("none", false); }

}  // namespace sluiceway
