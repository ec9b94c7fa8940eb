#include "compress/factored_moment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace sluiceway {
namespace {

void average(std::span<const float> from, std::span<const float> now, double beta,
             double factor_squared, std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<float>(beta * static_cast<double>(from[i]) +
                               (1 - beta) * factor_squared * static_cast<double>(now[i]));
  }
}

}  // namespace

double mean(std::span<const float> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

void advance(const FactoredMoment& from, const FactoredMoment& means, double beta2, double factor,
             const FactoredMoment& to) {
  average(from.row, means.row, beta2, factor * factor, to.row);
  average(from.col, means.col, beta2, factor * factor, to.col);
}

FactoredRoots roots_of(const FactoredMoment& moment, double beta2, std::int64_t step,
                       double divisor, double eps, const FactoredMoment& out) {
  const double mean_row = mean(moment.row);
  if (!std::isfinite(mean_row) || !std::isfinite(mean(moment.col))) {
    std::fill(out.row.begin(), out.row.end(), std::numeric_limits<float>::infinity());
    std::fill(out.col.begin(), out.col.end(), 1.0F);
    return {out.row, out.col, static_cast<float>(eps / divisor)};
  }
  const double correction = 1 - std::pow(beta2, static_cast<double>(step));
  for (std::size_t i = 0; i < out.row.size(); ++i) {
    const double row = mean_row > 0 ? static_cast<double>(moment.row[i]) / mean_row : 0;
    out.row[i] = static_cast<float>(std::sqrt(row) / divisor);
  }
  for (std::size_t j = 0; j < out.col.size(); ++j) {
    out.col[j] = static_cast<float>(std::sqrt(static_cast<double>(moment.col[j]) / correction));
  }
  return {out.row, out.col, static_cast<float>(eps / divisor)};
}

}  // namespace sluiceway
