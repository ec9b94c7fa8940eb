#include "compress/gradient_residual.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "compress/codec_families.h"
#include "kernels/base/check.h"
#include "kernels/overflow_scan.h"
#include "kernels/residual.h"

namespace sluiceway {
namespace {

// Rows and columns of a state of m + n elements.
struct Factors {
  std::span<float> rows, cols;
  Factors(std::span<float> both, std::int64_t m)
      : rows(both.first(static_cast<std::size_t>(m))),
        cols(both.subspan(static_cast<std::size_t>(m))) {}
};

double mean(std::span<const float> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

void average(std::span<float> x, std::span<const float> now, double beta, double factor_squared) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(beta * static_cast<double>(x[i]) +
                              (1 - beta) * factor_squared * static_cast<double>(now[i]));
  }
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
  return kind == ResidualKind::kFactored ? 2 * sizeof(float) * static_cast<std::uint64_t>(m + n)
                                         : 0;
}

GradientResidual::GradientResidual(ResidualKind kind, std::int64_t m, std::int64_t n,
                                   Budget& budget, std::string_view weight_name)
    : kind_(kind), m_(m), n_(n) {
  const auto half = static_cast<std::size_t>(bytes(kind, m, n)) / 2;
  moments_ = Buffer(budget, Tier::kDevice, {}, half, concat("residual moments of ", weight_name));
  roots_ = Buffer(budget, Tier::kDevice, {}, half, concat("residual roots of ", weight_name));
}

bool GradientResidual::apply(const GradientCodec& codec, const AnyMatrix& g, MatrixView<float> s,
                             const AnyMatrix& w, MatrixView<std::uint16_t> low,
                             const ResidualStep& step, std::span<float> scratch, StreamRef stream) {
  require_host_stream(stream, "residual");
  SLUICEWAY_CHECK(g.rows == m_ && g.cols == n_, "residual: gradient is ", g.rows, "x", g.cols,
                  ", expected ", m_, "x", n_);
  if (s.elems() > 0) {
    const AnyMatrix core{s.data, s.rows, s.cols, s.stride, DType::kF32};
    codec.apply(g, {}, core, {.alpha = -1.0F}, scratch, stream);
  }
  WeightUpdate update = step.update;
  update.alpha = static_cast<float>(-step.lr);
  if (kind_ == ResidualKind::kSign) {
    if (!cpu::overflow_scan(g).finite) return false;
    cpu::residual_sign(w, low, g, update);
    return true;
  }
  const Factors now(roots_.as<float>(), m_), kept(moments_.as<float>(), m_);
  cpu::residual_moments(g, now.rows, now.cols);
  const double total = mean(now.rows);
  if (!std::isfinite(total)) return false;
  const double factor = static_cast<double>(step.factor);
  average(kept.rows, now.rows, step.beta2, factor * factor);
  average(kept.cols, now.cols, step.beta2, factor * factor);
  ++steps_;
  // Roots of V, in units of R before it is unscaled: row[i] col[j] = sqrt(V_ij) / factor.
  const double mean_row = mean(kept.rows);
  const double correction = 1 - std::pow(step.beta2, static_cast<double>(steps_));
  for (std::size_t i = 0; i < kept.rows.size(); ++i) {
    const double row = mean_row > 0 ? static_cast<double>(kept.rows[i]) / mean_row : 0;
    now.rows[i] = static_cast<float>(std::sqrt(row) / factor);
  }
  for (std::size_t j = 0; j < kept.cols.size(); ++j) {
    now.cols[j] = static_cast<float>(std::sqrt(static_cast<double>(kept.cols[j]) / correction));
  }
  const FactoredRoots roots{now.rows, now.cols, static_cast<float>(step.eps / factor)};
  const double rms = cpu::residual_rms(g, roots);
  update.alpha = static_cast<float>(-step.lr / std::max(1.0, rms));
  cpu::residual_apply(w, low, g, roots, update);
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
