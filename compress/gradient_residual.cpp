#include "compress/gradient_residual.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "compress/factored_moment.h"
#include "compress/host_only.h"
#include "kernels/base/check.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual.h"

namespace sluiceway {

namespace {

// A residual below this share of the gradient is what rounding leaves of one that the codec holds
// wholly: of G's elements in 16 bits, of sums of some thousand products in f32.
double rounding_share(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    case DType::kF32:
      break;
  }
  return 1e-5;
}

}  // namespace

ResidualKind parse_residual(std::string_view name) {
  if (name == "none") return ResidualKind::kNone;
  if (name == "factored") return ResidualKind::kFactored;
  SLUICEWAY_CHECK(name == "sign", "residual: is \"", name, "\", expected factored, sign or none");
  return ResidualKind::kSign;
}

std::string_view to_string(ResidualKind kind) noexcept {
  switch (kind) {
    case ResidualKind::kNone:
      return "none";
    case ResidualKind::kFactored:
      return "factored";
    case ResidualKind::kSign:
      break;
  }
  return "sign";
}

std::uint64_t GradientResidual::bytes(ResidualKind kind, std::int64_t m, std::int64_t n) noexcept {
  const std::uint64_t means = sizeof(float) * static_cast<std::uint64_t>(m + n);
  return kind == ResidualKind::kNone ? 0 : kind == ResidualKind::kSign ? means : 2 * means;
}

GradientResidual::GradientResidual(ResidualKind kind, std::int64_t m, std::int64_t n,
                                   DeviceId device, Budget& budget, std::string_view weight_name)
    : kind_(kind), m_(m), n_(n) {
  const auto means = static_cast<std::size_t>(bytes(ResidualKind::kSign, m, n));
  if (kind == ResidualKind::kFactored) {
    moments_ =
        Buffer(budget, Tier::kDevice, device, means, concat("residual moments of ", weight_name));
  }
  roots_ = Buffer(budget, Tier::kDevice, device, means, concat("residual means of ", weight_name));
}

bool GradientResidual::apply(const GradientCodec& codec, const AnyMatrix& g, MatrixView<float> s,
                             const AnyMatrix& w, MatrixView<std::uint16_t> low,
                             const ResidualStep& step, std::span<float> scratch, StreamRef stream) {
  require_host_stream(stream, "residual", "its means are looked at by the host");
  SLUICEWAY_CHECK(g.rows == m_ && g.cols == n_, "residual: gradient is ", g.rows, "x", g.cols,
                  ", expected ", m_, "x", n_);
  const FactoredMoment now = FactoredMoment::of(roots_.as<float>(), m_);
  ScanResult core;
  overflow_scan(AnyMatrix{s.data, s.rows, s.cols, s.stride, DType::kF32}, &core, stream);
  codec.leave_residual(g, s, now.row, now.col, scratch, stream);
  if (!std::isfinite(mean(now.row)) || !std::isfinite(mean(now.col))) return false;
  const double left = mean(now.row) * static_cast<double>(m_ * n_);
  const double share = rounding_share(g.dtype);
  if (left < share * share * core.sum_squares)
    return false;  // |S| is |P S Q^T| where columns are orthonormal.
  WeightUpdate update = step.update;
  update.alpha = static_cast<float>(-step.lr);
  if (kind_ == ResidualKind::kSign) {
    residual_sign(w, low, g, update, stream);
    return true;
  }
  const FactoredMoment kept = FactoredMoment::of(moments_.as<float>(), m_);
  const double factor = static_cast<double>(step.factor);
  advance(kept, now, step.beta2, factor, kept);
  ++steps_;
  // In units of R before it is unscaled.
  const FactoredRoots roots = roots_of(kept, step.beta2, steps_, factor, step.eps, now);
  if (std::isfinite(step.max_rms)) {
    double rms = 0;
    residual_rms(&rms, g, roots, stream);
    update.alpha = static_cast<float>(-step.lr / std::max(1.0, rms / step.max_rms));
  }
  residual_apply(w, low, g, roots, update, stream);
  return true;
}

void GradientResidual::load(std::int64_t steps, std::span<const float> moments) {
  const std::span<float> to = moments_.as<float>();
  SLUICEWAY_CHECK(moments.size() == to.size(), "residual: state has ", moments.size(),
                  " moments, expected ", to.size());
  SLUICEWAY_CHECK(steps >= 0, "residual: state has ", steps, " steps, expected 0 or more");
  std::copy(moments.begin(), moments.end(), to.begin());
  steps_ = steps;
}

}  // namespace sluiceway
