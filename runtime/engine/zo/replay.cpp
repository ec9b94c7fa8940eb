#include "runtime/engine/zo/replay.h"

#include <cmath>
#include <limits>

#include "kernels/base/check.h"

namespace sluiceway {

double decay_factor(double lr, double weight_decay) {
  SLUICEWAY_CHECK(std::isfinite(lr) && lr >= 0, "scalar log: lr is ", lr,
                  ", expected a finite number of at least 0");
  SLUICEWAY_CHECK(std::isfinite(weight_decay) && weight_decay >= 0, "scalar log: weight decay is ",
                  weight_decay, ", expected a finite number of at least 0");
  const double product = lr * weight_decay;
  SLUICEWAY_CHECK(product < 1, "scalar log: lr x weight decay is ", lr, " x ", weight_decay, " = ",
                  product, ", expected below 1, because theta is multiplied by 1 - lr wd");
  return 1 - product;
}

float gamma_as_float(double gamma) {
  const auto rounded = static_cast<float>(gamma);
  SLUICEWAY_CHECK(rounded >= std::numeric_limits<float>::min(), "scalar log: Gamma is ", gamma,
                  ", expected at least ", std::numeric_limits<float>::min(),
                  ", the smallest normal float; consolidate into a new base");
  return rounded;
}

float update_scale(double lr, float g, std::uint32_t directions, double gamma_after) {
  const double scale = -(lr * double{g}) / (static_cast<double>(directions) * gamma_after);
  // A conversion of what no float holds is undefined.
  SLUICEWAY_CHECK(std::abs(scale) <= double{std::numeric_limits<float>::max()},
                  "scalar log: an update's scale is ", scale, " (lr ", lr, ", g ", g, ", ",
                  directions, " directions, Gamma ", gamma_after, "), expected at most ",
                  std::numeric_limits<float>::max(), "; lower lr, or consolidate into a new base");
  return static_cast<float>(scale);
}

Replay replay(const LogHistory& history, const Base& base, std::uint32_t group, std::uint64_t from,
              std::uint64_t to) {
  const LogShape& shape = history.header().shape;
  SLUICEWAY_CHECK(group < shape.groups, "replay: group is ", group, ", expected a number below ",
                  shape.groups);
  SLUICEWAY_CHECK(history.has_base(base), "replay: base of step ", base.step, " and generation ",
                  base.generation, " is not on the log's line; use a base of this line");
  SLUICEWAY_CHECK(base.step <= from && from <= to && to <= history.next_step(), "replay: steps ",
                  from, " to ", to, ", expected a range within ", base.step, " and ",
                  history.next_step());
  Replay result;
  double gamma = 1;
  for (std::uint64_t step = base.step; step < to; ++step) {
    const LoggedStep update = history.update(step);
    gamma *= update.rates[group].decay;
    if (step < from) continue;
    for (std::uint32_t d = 0; d < shape.directions; ++d) {
      const float scale =
          update_scale(update.rates[group].lr, update.g[d], shape.directions, gamma);
      result.updates.push_back({step, d, scale});
    }
  }
  result.gamma = gamma_as_float(gamma);
  return result;
}

std::vector<double> gammas(const LogHistory& history, const Base& base, std::uint64_t step) {
  std::vector<double> gamma(history.header().shape.groups, 1.0);
  for (std::uint64_t s = base.step; s < step; ++s) {
    const LoggedStep update = history.update(s);
    for (std::size_t i = 0; i < gamma.size(); ++i) gamma[i] *= update.rates[i].decay;
  }
  return gamma;
}

}  // namespace sluiceway
