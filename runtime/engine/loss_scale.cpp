#include "runtime/engine/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace sluiceway {

LossScale::LossScale(Config config) : config_(config) {
  if (config.mode == Mode::kOff) config_.initial = 1;
  SLUICEWAY_CHECK(std::isfinite(config_.initial) && config_.initial > 0, "LossScale: initial is ",
                  config_.initial, ", expected a positive number");
  SLUICEWAY_CHECK(config.growth >= 1 && config.backoff > 0 && config.backoff <= 1,
                  "LossScale: growth is ", config.growth, " and backoff ", config.backoff,
                  ", expected growth >= 1 and backoff in (0, 1]");
  SLUICEWAY_CHECK(config.growth_interval > 0, "LossScale: growth_interval is ",
                  config.growth_interval, " steps, expected at least 1");
  state_.value = config_.initial;
}

void LossScale::update(bool overflowed) noexcept {
  if (config_.mode != Mode::kDynamic) return;
  if (overflowed) {
    if (state_.value <= config_.floor) ++state_.overflows_at_floor;
    state_.value = std::max(config_.floor, state_.value * config_.backoff);
    state_.clean_steps = 0;
    return;
  }
  if (++state_.clean_steps < config_.growth_interval) return;
  state_.clean_steps = 0;
  const double grown = state_.value * config_.growth;
  if (grown <= 0x1p127) state_.value = grown;  // Beyond 2^127 an f32 scale would itself overflow.
}

void LossScale::load(const State& state) {
  SLUICEWAY_CHECK(std::isfinite(state.value) && state.value > 0, "LossScale: stored value is ",
                  state.value, ", expected a positive number");
  state_ = state;
}

}  // namespace sluiceway
