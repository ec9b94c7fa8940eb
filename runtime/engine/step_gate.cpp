#include "runtime/engine/step_gate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kTuneEvery = 16;  // Steps between two looks at the measured times.

float clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

}  // namespace

bool Forecast::holds(const AdamHyper& hyper, float true_factor) const noexcept {
  return factor == true_factor && adam.beta1 == hyper.beta1 && adam.beta2 == hyper.beta2 &&
         adam.eps == hyper.eps && adam.step == hyper.step;
}

StepGate::StepGate(const Options& options, Order order, Executor& executor, int part_count)
    : options_(options),
      order_(order),
      executor_(executor),
      norm_mode_(options.norm, order),
      parts_(static_cast<std::size_t>(part_count)) {
  for (Part& part : parts_) part.expected = std::max(1, options.promised_backwards);
}

// ---- While a step's gradient is gathered --------------------------------------------------------

bool StepGate::take_back(int part) {
  if (!at(part).sent) return false;
  executor_.recall(part);
  at(part).sent = false;
  at(part).forecast.reset();
  ++recalled_;
  return true;
}

void StepGate::note_gradient(int part) {
  ++at(part).backwards;
  at(part).scanned = false;
}

void StepGate::note_scan(int part, const ScanResult& scan) {
  at(part).scan = scan;
  at(part).scanned = true;
}

void StepGate::send(int part, Payload payload, std::optional<Forecast> forecast) {
  at(part).sent = true;
  at(part).forecast = std::move(forecast);
  executor_.submit(std::move(payload));
}

bool StepGate::gathering() const noexcept {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.sent; });
}

bool StepGate::has_gradient() const noexcept {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.backwards > 0; });
}

// While a checkpointed segment is recomputed, a forward must not wait for a payload that no
// commit() has released.
bool StepGate::holds_back(int part) const {
  return at(part).sent || (order_ == Order::kBarrier && gathering());
}

GradientNorm StepGate::norm(std::span<const float> part_factors) const {
  double sum_squares = 0;
  bool finite = true;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    if (part.backwards == 0) continue;
    const double own = part_factors.empty() ? 1 : part_factors[i];
    sum_squares += own * own * part.scan.sum_squares;
    finite = finite && part.scan.finite;
  }
  return {std::sqrt(sum_squares), finite};
}

// ---- The step -----------------------------------------------------------------------------------

StepOutcome StepGate::decide(float factor, double other_sum_squares,
                             std::span<const float> part_factors) const {
  SLUICEWAY_CHECK(part_factors.empty() || part_factors.size() == parts_.size(),
                  "StepGate: ", part_factors.size(), " factors for ", parts_.size(),
                  " parts, expected one for each part");
  StepOutcome outcome;
  const GradientNorm parts = norm(part_factors);
  const double scale = static_cast<double>(factor);
  outcome.grad_norm = std::sqrt(scale * scale * parts.norm * parts.norm + other_sum_squares);
  outcome.skipped = !parts.finite || !std::isfinite(outcome.grad_norm);
  if (!outcome.skipped) outcome.clip_factor = clip_factor(outcome.grad_norm, options_.max_norm);
  return outcome;
}

bool StepGate::still_holds(int part, const AdamHyper& adam, float factor) {
  const std::optional<Forecast>& forecast = at(part).forecast;
  if (forecast && !forecast->holds(adam, factor)) redone_ = take_back(part) || redone_;
  return at(part).sent;
}

std::vector<int> StepGate::commit(float factor) {
  std::vector<int> updated;
  updated.reserve(parts_.size());
  executor_.release();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    if (part.backwards == 0) continue;
    updated.push_back(static_cast<int>(i));
    part.expected = options_.promised_backwards > 0 ? options_.promised_backwards : part.backwards;
    clear(part);
  }
  ++committed_steps_;
  forecast_factor_ = factor;
  norm_mode_.note_step(std::exchange(redone_, false));
  return updated;
}

void StepGate::drop() {
  // The gradient stays intact until every payload is back, because a recall may be interrupted.
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (!parts_[i].sent) continue;
    executor_.recall(static_cast<int>(i));
    parts_[i].sent = false;
  }
  for (Part& part : parts_) clear(part);
}

void StepGate::forget() noexcept {
  for (Part& part : parts_) clear(part);
}

void StepGate::clear(Part& part) noexcept {
  part.backwards = 0;
  part.scanned = false;
  part.sent = false;
  part.forecast.reset();
}

void StepGate::tune(const EngineLanes& lanes, const std::function<bool()>& make_room) {
  if (committed_steps_ % kTuneEvery != 0 || !lanes.has_device_times()) return;
  const std::vector<LayerCost> costs = lanes.measured_costs();
  if (order_ == Order::kPaper) {
    executor_.set_transition(static_cast<std::uint64_t>(transition_layer(costs, lanes.plan())));
  }
  if (!norm_mode_.decides()) return;
  norm_mode_.set_speculative(norm_mode_.prefers_speculative(costs, lanes.plan()) && make_room());
}

// ---- State --------------------------------------------------------------------------------------

void StepGate::set_committed_steps(std::int64_t steps) {
  SLUICEWAY_CHECK(steps >= 0, "StepGate: the number of committed steps is ", steps,
                  ", expected 0 or more");
  committed_steps_ = steps;
}

void StepGate::expect_backwards(int part, int backwards) {
  SLUICEWAY_CHECK(backwards > 0, "StepGate: the number of backwards per step is ", backwards,
                  ", expected 1 or more");
  if (options_.promised_backwards == 0) at(part).expected = backwards;
}

std::uint64_t StepGate::take_recalled() noexcept { return std::exchange(recalled_, 0); }

}  // namespace sluiceway
