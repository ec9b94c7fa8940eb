#include "compress/refresh_policy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "compress/codec_families.h"
#include "kernels/base/check.h"

namespace sluiceway {

CalibrationSource parse_calibration_source(std::string_view name) {
  if (name == "closure") return CalibrationSource::kClosure;
  if (name == "rolling") return CalibrationSource::kRolling;
  throw InvalidArgument(
      concat("refresh: source is \"", name, "\", expected \"closure\" or \"rolling\""));
}

RefreshPolicy::Config RefreshPolicy::default_config(std::string_view codec) {
  Config config;
  if (const CodecFamily* family = find_codec_family(codec)) config.every = family->refresh_every;
  return config;
}

RefreshPolicy::RefreshPolicy(Config config, int weights) : config_(config) {
  SLUICEWAY_CHECK(config.every >= 0, "RefreshPolicy: every is ", config.every,
                  " steps, expected 0 (never) or more");
  SLUICEWAY_CHECK(config.per_step > 0, "RefreshPolicy: per_step is ", config.per_step,
                  " weights, expected 1 or more");
  SLUICEWAY_CHECK(weights >= 0, "RefreshPolicy: ", weights, " weights, expected 0 or more");
  last_measured_.assign(static_cast<std::size_t>(weights), -1);
  if (config_.source == CalibrationSource::kClosure) config_.per_step = std::max(weights, 1);
  const std::int64_t sweep = (weights + config_.per_step - 1) / config_.per_step;
  period_ = config_.every == 0 ? 0 : std::max(config_.every, sweep);
}

std::int64_t RefreshPolicy::last_turn(std::int64_t step, int weight) const {
  const std::int64_t first = weight / config_.per_step;
  if (step < first) return -1;
  return step - (step - first) % period_;
}

bool RefreshPolicy::due(std::int64_t step, int weight) const {
  if (period_ == 0) return false;
  const std::int64_t turn = last_turn(step, weight);
  if (config_.source == CalibrationSource::kClosure && turn != step) return false;
  return last_measured_.at(static_cast<std::size_t>(weight)) < turn;
}

std::vector<int> RefreshPolicy::due(std::int64_t step) const {
  std::vector<int> weights;
  for (std::size_t i = 0; i < last_measured_.size(); ++i) {
    if (due(step, static_cast<int>(i))) weights.push_back(static_cast<int>(i));
  }
  return weights;
}

void RefreshPolicy::measured(std::int64_t step, int weight) {
  last_measured_.at(static_cast<std::size_t>(weight)) = step;
}

std::vector<std::byte> RefreshPolicy::save() const {
  std::vector<std::byte> state(last_measured_.size() * sizeof(std::int64_t));
  if (!state.empty()) std::memcpy(state.data(), last_measured_.data(), state.size());
  return state;
}

void RefreshPolicy::load(std::span<const std::byte> state) {
  const std::size_t expected = last_measured_.size() * sizeof(std::int64_t);
  if (state.size() != expected) {
    throw Corrupt(concat("RefreshPolicy: the state has ", format_bytes(state.size()), ", expected ",
                         format_bytes(expected), " for ", last_measured_.size(), " weights"));
  }
  if (!state.empty()) std::memcpy(last_measured_.data(), state.data(), state.size());
}

}  // namespace sluiceway
