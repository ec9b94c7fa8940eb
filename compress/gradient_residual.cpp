#include "compress/gradient_residual.h"

#include <cmath>
#include <string>

#include "kernels/base/check.h"
#include "kernels/factored_moment.h"
#include "kernels/residual.h"
#include "runtime/device/device_memory.h"

namespace sluiceway {

namespace {

// A residual below this share of the gradient is only rounding error of a gradient that the codec
// captures fully: from G's elements in 16 bits, or from f32 sums of some thousand products.
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

std::size_t vector_bytes(std::int64_t m, std::int64_t n) noexcept {
  return sizeof(float) * static_cast<std::size_t>(m + n);
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
  if (kind == ResidualKind::kNone) return 0;
  const std::size_t vectors = kind == ResidualKind::kFactored ? 2 : 1;
  return vectors * vector_bytes(m, n) + sizeof(ResidualVerdict);
}

GradientResidual::GradientResidual(ResidualKind kind, std::int64_t m, std::int64_t n,
                                   DeviceId device, Budget& budget, std::string_view weight_name)
    : kind_(kind), m_(m), n_(n), device_(device) {
  const auto reserved = [&](std::size_t bytes, const char* what) {
    return Buffer(budget, Tier::kDevice, device, bytes, concat("residual ", what, weight_name));
  };
  if (kind == ResidualKind::kFactored) moments_ = reserved(vector_bytes(m, n), "moments of ");
  means_ = reserved(vector_bytes(m, n), "means of ");
  verdict_ = reserved(sizeof(ResidualVerdict), "verdict of ");
}

void GradientResidual::apply(const GradientCodec& codec, const AnyMatrix& g, MatrixView<float> s,
                             const AnyMatrix& w, MatrixView<std::uint16_t> low,
                             const ResidualStep& step, std::span<float> scratch, StreamRef stream) {
  SLUICEWAY_CHECK(g.rows == m_ && g.cols == n_, "residual: gradient is ", g.rows, "x", g.cols,
                  ", expected ", m_, "x", n_);
  ResidualVerdict* const verdict = verdict_.as<ResidualVerdict>().data();
  MeansPass pass{.means = FactoredMoment::of(means_.as<float>(), m_),
                 .verdict = verdict,
                 .share = rounding_share(g.dtype),
                 .lr = step.lr,
                 .core = s,
                 .scan = step.scan};
  if (kind_ == ResidualKind::kFactored) {
    pass.from = pass.to = FactoredMoment::of(moments_.as<float>(), m_);
    // The roots are in the units of R before unscaling.
    pass.step = {.beta2 = step.beta2, .eps = step.eps, .factor = static_cast<double>(step.factor)};
  }
  codec.leave_residual(g, s, pass, scratch, stream);
  if (kind_ == ResidualKind::kSign) {
    return residual_sign(w, low, g, step.update, verdict, stream);
  }
  const FactoredRoots roots = pass.roots();
  if (std::isfinite(step.max_rms)) residual_clip(verdict, g, roots, step.lr, step.max_rms, stream);
  residual_apply(w, low, g, roots, step.update, verdict, stream);
}

bool GradientResidual::trained(StreamRef stream) const {
  wait_for(stream);
  return verdict().trains;
}

ResidualVerdict GradientResidual::verdict() const {
  ResidualVerdict here;
  copy_device_bytes(device_, &here, verdict_.data(), sizeof here);
  return here;
}

void GradientResidual::load(std::int64_t steps, std::span<const float> moments) {
  const std::span<float> to = moments_.as<float>();
  SLUICEWAY_CHECK(moments.size() == to.size(), "residual: state has ", moments.size(),
                  " moments, expected ", to.size());
  SLUICEWAY_CHECK(steps >= 0, "residual: state has ", steps, " steps, expected 0 or more");
  copy_device_bytes(device_, to.data(), moments.data(), to.size_bytes());
  const ResidualVerdict none{.steps = steps};
  copy_device_bytes(device_, verdict_.data(), &none, sizeof none);
}

}  // namespace sluiceway
