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

double sum(std::span<const float> x) { return std::accumulate(x.begin(), x.end(), 0.0); }

void judge(const MeansPass& pass) {
  const std::span<const float> rows = pass.means.row, cols = pass.means.col;
  const auto elems = static_cast<double>(rows.size() * cols.size());
  const double squares = sum(rows) * static_cast<double>(cols.size());
  const MatrixView<float>& s = pass.core;
  const ScanResult core = overflow_scan(AnyMatrix{s.data, s.rows, s.cols, s.stride, DType::kF32});
  pass.verdict->trains = residual_trains(elems, squares, pass.share, core.sum_squares);
  pass.verdict->alpha = static_cast<float>(-pass.lr);
}

void advance(const MeansPass& pass, std::int64_t t) {
  const FactoredMoment &means = pass.means, &to = pass.to;
  average(pass.from.row, means.row, pass.step, to.row);
  average(pass.from.col, means.col, pass.step, to.col);
  const double sum_rows = sum(to.row), mean_row = sum_rows / static_cast<double>(to.row.size());
  if (!fits_f32(sum_rows) || !fits_f32(sum(to.col))) {
    std::fill(means.row.begin(), means.row.end(), std::numeric_limits<float>::infinity());
    std::fill(means.col.begin(), means.col.end(), 1.0F);
    return;
  }
  const double correction = 1 - std::pow(pass.step.beta2, static_cast<double>(t));
  for (std::size_t i = 0; i < to.row.size(); ++i) {
    means.row[i] = static_cast<float>(std::sqrt(row_share(to.row[i], mean_row)) / pass.step.factor);
  }
  for (std::size_t j = 0; j < to.col.size(); ++j) {
    means.col[j] = static_cast<float>(std::sqrt(static_cast<double>(to.col[j]) / correction));
  }
}

}  // namespace

void use_means(const MeansPass& pass) {
  if (pass.verdict != nullptr) judge(pass);
  if (pass.to.empty() || (pass.verdict != nullptr && !pass.verdict->trains)) return;
  advance(pass, pass.verdict != nullptr ? ++pass.verdict->steps : pass.step.step);
}

}  // namespace sluiceway::cpu
