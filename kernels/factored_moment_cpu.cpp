#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/factored_moment.h"

namespace sluiceway::cpu {
namespace {

void average(std::span<const float> from, std::span<const float> means, const MomentStep& step,
             std::span<float> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = advanced_mean(step, from[i], means[i]);
}

}  // namespace

double mean(std::span<const float> x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

void advance_moment(const FactoredMoment& from, const FactoredMoment& means, const MomentStep& step,
                    const FactoredMoment& to) {
  check_moment(from, means, to);
  average(from.row, means.row, step, to.row);
  average(from.col, means.col, step, to.col);
  const double mean_row = mean(to.row);
  if (!is_finite(mean_row) || !is_finite(mean(to.col))) {
    std::fill(means.row.begin(), means.row.end(), std::numeric_limits<float>::infinity());
    std::fill(means.col.begin(), means.col.end(), 1.0F);
    return;
  }
  const double correction = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  for (std::size_t i = 0; i < to.row.size(); ++i) {
    means.row[i] = static_cast<float>(std::sqrt(row_share(to.row[i], mean_row)) / step.factor);
  }
  for (std::size_t j = 0; j < to.col.size(); ++j) {
    means.col[j] = static_cast<float>(std::sqrt(static_cast<double>(to.col[j]) / correction));
  }
}

}  // namespace sluiceway::cpu
