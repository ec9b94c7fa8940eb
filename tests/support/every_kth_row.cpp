#include "tests/support/every_kth_row.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "compress/codec_state.h"
#include "compress/projector.h"
#include "kernels/gradient_copy.h"
#include "kernels/residual.h"
#include "runtime/memory/buffer.h"

namespace sluiceway::test {
namespace {

// Keeps every k-th row of the gradient, k = round(1 / ratio): P is a selection, Q the identity.
class EveryKthRow final : public GradientCodec {
 public:
  static std::int64_t stride(const CodecConfig& config) { return std::llround(1 / config.ratio); }
  static std::int64_t kept(const CodecConfig& config, std::int64_t m) {
    return (m + stride(config) - 1) / stride(config);
  }

  explicit EveryKthRow(const CodecRequest& request)
      : GradientCodec(request.family),
        stride_(stride(request.config)),
        header_(header_of(request, {.m = request.m,
                                    .n = request.n,
                                    .dm = kept(request.config, request.m),
                                    .dn = request.n})),
        rows_(request.budget, Tier::kDevice, request.device,
              static_cast<std::size_t>(header_.dm) * sizeof(std::int64_t), "kept rows") {
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      rows_.as<std::int64_t>()[static_cast<std::size_t>(i)] = i * stride_;
    }
  }

  CoreShape core() const noexcept override { return {header_.dm, header_.dn}; }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> /*scratch*/,
                StreamRef /*stream*/) const override {
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      for (std::int64_t j = 0; j < header_.dn; ++j) {
        s.row(i)[j] = (beta == 0 ? 0 : beta * s.row(i)[j]) + g.as<float>().row(row(i))[j];
      }
    }
  }
  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> /*low*/, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> /*scratch*/,
             StreamRef /*stream*/) const override {
    for (std::int64_t i = 0; i < w.rows; ++i) {
      for (std::int64_t j = 0; j < w.cols; ++j) w.as<float>().row(i)[j] *= update.decay;
    }
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      for (std::int64_t j = 0; j < header_.dn; ++j) {
        w.as<float>().row(row(i))[j] += update.alpha * d.as<float>().row(i)[j];
      }
    }
  }
  ScanResult decompress_range(const AnyMatrix& s, std::int64_t first, std::span<std::byte> dst,
                              DType dtype, std::span<float> /*scratch*/) const override {
    std::vector<float> x(dst.size() / size_bytes(dtype));
    for (std::size_t k = 0; k < x.size(); ++k) {
      const std::int64_t at = first + static_cast<std::int64_t>(k), i = at / header_.dn;
      if (i % stride_ == 0) x[k] = s.as<float>().row(i / stride_)[at % header_.dn];
    }
    return cpu::gradient_copy(std::as_bytes(std::span(x)), DType::kF32, dst, dtype);
  }
  void leave_residual(const AnyMatrix& g, MatrixView<float> /*s*/, const MeansPass& pass,
                      std::span<float> /*scratch*/, StreamRef stream) const override {
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      std::fill_n(g.as<float>().row(row(i)), g.cols, 0.0F);
    }
    mean_squares(g, pass, 1.0F, stream);
  }
  std::vector<std::byte> save() const override { return write_codec_state(header_, {}, {}); }
  void check(std::span<const std::byte> state) const override { read_codec_state(state, header_); }
  void load(std::span<const std::byte> state) override { check(state); }

 protected:
  BiasNorm measure_bias(const AnyMatrix& g, std::span<float> /*scratch*/,
                        StreamRef /*stream*/) const override {
    BiasNorm norm;
    for (std::int64_t i = 0; i < g.rows; ++i) {
      for (std::int64_t j = 0; j < g.cols; ++j) {
        const double square = std::pow(static_cast<double>(g.as<float>().row(i)[j]), 2);
        norm.grad_sq += square;
        if (i % stride_ != 0) norm.bias_sq += square;
      }
    }
    return norm;
  }

 private:
  std::int64_t row(std::int64_t i) const {
    return rows_.as<std::int64_t>()[static_cast<std::size_t>(i)];
  }

  std::int64_t stride_;
  CodecStateHeader header_;
  Buffer rows_;
};

}  // namespace

CodecFamily every_kth_row() {
  CodecFamily family;
  family.name = "every_kth_row";
  family.offered = true;
  family.complement = Complement::kAlways;
  family.refresh_every = 7;
  family.core = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return CoreShape{EveryKthRow::kept(config, m), n};
  };
  family.projector_bytes = [](const CodecConfig& config, std::int64_t m, std::int64_t) {
    return static_cast<std::uint64_t>(EveryKthRow::kept(config, m)) * sizeof(std::int64_t);
  };
  family.make = [](const CodecRequest& request) { return std::make_unique<EveryKthRow>(request); };
  return family;
}

}  // namespace sluiceway::test
