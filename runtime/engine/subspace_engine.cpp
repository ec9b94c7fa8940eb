#include "runtime/engine/subspace_engine.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kWeightRoundingPurpose = 1;
constexpr std::uint32_t kResidualRoundingPurpose = 2;

// Bytes of a scratch buffer that serves every slot in turn.
std::size_t largest(const std::vector<std::unique_ptr<WeightSlot>>& slots,
                    std::size_t (WeightSlot::*elems)() const noexcept) {
  std::size_t most = 0;
  for (const auto& slot : slots) most = std::max(most, ((*slot).*elems)());
  return most * sizeof(float);
}

std::vector<std::unique_ptr<WeightSlot>> make_slots(std::vector<WeightSpec> weights,
                                                    DeviceId device, Budget& budget) {
  SLUICEWAY_CHECK(!weights.empty(), "SubspaceEngine: 0 weights, expected at least one");
  const std::string automatic(
      auto_codec(weights, budget.limit(Tier::kDevice) - budget.used(Tier::kDevice)));
  for (WeightSpec& spec : weights) {
    if (spec.codec.name == "auto") spec.codec.name = automatic;
  }
  std::vector<std::unique_ptr<WeightSlot>> slots;
  slots.reserve(weights.size());
  for (WeightSpec& spec : weights) {
    slots.push_back(std::make_unique<WeightSlot>(std::move(spec), device, budget));
  }
  return slots;
}

// As torch.nn.utils.clip_grad_norm_ has it: max_norm / (norm + 1e-6), at most 1.
float clip_factor(double norm, double max_norm) {
  if (max_norm <= 0) return 1;
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

// The learning rate is not part of a core's direction, so it may differ.
bool holds(const WeightSlot::Forecast& forecast, const AdamHyper& adam, float factor) {
  return forecast.factor == factor && forecast.adam.beta1 == adam.beta1 &&
         forecast.adam.beta2 == adam.beta2 && forecast.adam.eps == adam.eps &&
         forecast.adam.step == adam.step;
}

}  // namespace

SubspaceEngine::SubspaceEngine(EngineOptions options, std::vector<WeightSpec> weights,
                               std::unique_ptr<ProjectorLearner> learner)
    : options_(std::move(options)),
      budget_(options_.limits),
      resident_(budget_.reserve(Tier::kDevice, options_.resident_bytes, "the model")),
      slots_(make_slots(std::move(weights), options_.device, budget_)),
      learner_(std::move(learner)),
      refresh_(options_.refresh, static_cast<int>(slots_.size())),
      compress_scratch_(
          budget_, Tier::kDevice, options_.device,
          largest(slots_, options_.refresh.every > 0 ? &WeightSlot::refresh_scratch_elems
                                                     : &WeightSlot::scratch_elems),
          "scratch of compress", Fill::kNone),
      apply_scratch_(budget_, Tier::kDevice, options_.device,
                     largest(slots_, &WeightSlot::scratch_elems), "scratch of apply", Fill::kNone),
      host_scratch_(budget_, Tier::kHost, options_.device,
                    largest(slots_, &WeightSlot::host_scratch_elems), "scratch of AdamW",
                    Fill::kNone),
      d2h_(options_.device, LinkDirection::kDeviceToHost, options_.d2h),
      h2d_(options_.device, LinkDirection::kHostToDevice, options_.h2d),
      d2h_stream_(Stream::owned(options_.device, {"sw-d2h", options_.lane_cpu})),
      host_stream_(Stream::host({"sw-host", options_.lane_cpu})),
      h2d_stream_(Stream::owned(options_.device, {"sw-h2d", options_.lane_cpu})),
      apply_stream_(Stream::owned(options_.device, {"sw-apply", options_.device_cpu})),
      device_row_(trace_.add_row("device")),
      norm_mode_(options_.norm, options_.order) {
  SLUICEWAY_CHECK(
      learner_ != nullptr || std::none_of(slots_.begin(), slots_.end(),
                                          [](const auto& slot) { return slot->codec->learns(); }),
      "SubspaceEngine: no learner, expected one for codec ", slots_.front()->codec->name());
  Executor::Config config;
  config.streams = {&d2h_stream_, &host_stream_, &h2d_stream_, &apply_stream_};
  config.layer_count = static_cast<int>(slots_.size());
  config.order = options_.order;
  config.trace = &trace_;
  for (const Lane lane : kLanes) config.trace_rows[index(lane)] = trace_.add_row(to_string(lane));
  executor_ = std::make_unique<Executor>(config);
  for (const auto& slot : slots_) {
    slot->expected = std::max(1, options_.promised_backwards);
    slot->residual_at_once = options_.residual_at_once && options_.promised_backwards > 0;
    if (!slot->residual_at_once || slot->expected > 1) slot->hold_gradient(budget_);
  }
  if (norm_mode_.speculative()) ensure_spares();
}

SubspaceEngine::~SubspaceEngine() = default;

void SubspaceEngine::check_shape(const WeightSlot& slot, const AnyMatrix& matrix,
                                 const char* what) const {
  SLUICEWAY_CHECK(matrix.rows == slot.spec.rows && matrix.cols == slot.spec.cols,
                  "SubspaceEngine: ", what, " of ", slot.spec.name, " is ", matrix.rows, "x",
                  matrix.cols, ", expected ", slot.spec.rows, "x", slot.spec.cols,
                  "; make a new optimizer after changing a parameter");
}

// ---- A step -------------------------------------------------------------------------------------

void SubspaceEngine::prepare(std::span<const WeightHyper> hyper,
                             std::span<const AnyMatrix> weights) {
  SLUICEWAY_CHECK(hyper.size() == slots_.size() && weights.size() == slots_.size(),
                  "SubspaceEngine: prepare with ", hyper.size(), " hyperparameters and ",
                  weights.size(), " weights, expected ", slots_.size(), " of each");
  early_.resize(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) early_[i] = {hyper[i], weights[i]};
}

void SubspaceEngine::hold_residual(int weight) {
  WeightSlot& slot = *slots_.at(static_cast<std::size_t>(weight));
  slot.hold_gradient(budget_);
  slot.residual_at_once = false;
}

bool SubspaceEngine::residual_turn(int weight) const noexcept {
  return (committed_steps_ + weight) % options_.residual_every == 0;
}

ResidualStep SubspaceEngine::residual_step(const WeightSlot& slot, const WeightHyper& hyper) const {
  ResidualStep step;
  step.lr = hyper.lr * std::sqrt(static_cast<double>(options_.residual_every));
  step.beta2 = hyper.beta2;
  step.eps = hyper.eps;
  step.max_rms = options_.residual_max_rms;
  // Decay goes with the core's update; a weight without one has only this.
  step.update.decay =
      slot.has_core()
          ? 1.0F
          : static_cast<float>(1 - options_.residual_every * hyper.lr * hyper.weight_decay);
  step.update.rounding = slot.spec.rounding;
  step.update.key = {options_.seed, static_cast<std::uint64_t>(committed_steps_), slot.hash,
                     kResidualRoundingPurpose};
  return step;
}

void SubspaceEngine::add_gradient(int weight, const AnyMatrix& g, const AnyMatrix& total,
                                  StreamRef compute) {
  WeightSlot& slot = *slots_.at(static_cast<std::size_t>(weight));
  check_shape(slot, g, "gradient");
  if (calibrating_) return calibrate(weight, g, compute);
  SLUICEWAY_CHECK(!slot.residual_done, "SubspaceEngine: ", slot.spec.name,
                  " gets a gradient after the last of the ", slot.expected,
                  " backwards that were promised for a step, expected step() first; set accumulate "
                  "to the true number, or to \"auto\"");
  if (slot.residual) {
    check_shape(slot, total, "sum of gradients");
    slot.total = total;
  }
  if (slot.submitted) {  // More backwards than were forecast: take the payload back, send it again.
    executor_->recall(weight);
    slot.submitted = false;
    ++stats_.recalled;
  } else if (options_.order == Order::kBarrier ? !gathering() : executor_->busy(weight)) {
    wait(weight);  // No forward of ours has read the weight since its last update.
  }
  const bool due = refresh_.due(committed_steps_, weight) &&
                   options_.refresh.source == CalibrationSource::kRolling;
  if (slot.backwards == 0 && (due || slot.codec->wants_calibration()))
    calibrate(weight, g, compute);
  {
    const TraceRange range(&trace_, device_row_, "compress");
    slot.accumulate(g, compress_scratch_.as<float>(), compute);
  }
  if (slot.residual && slot.residual_at_once && slot.backwards == slot.expected) {
    const TraceRange range(&trace_, device_row_, "residual");
    const Early& early = early_.at(static_cast<std::size_t>(weight));
    if (residual_turn(weight)) {
      slot.apply_residual(slot.total, early.weight, residual_step(slot, early.hyper),
                          compress_scratch_.as<float>(), compute);
    }
    slot.residual_done = true;
  }
  if (slot.backwards >= slot.expected) submit(weight, When::kGathering);
}

void SubspaceEngine::calibrate(int weight, const AnyMatrix& g, StreamRef compute) {
  WeightSlot& slot = *slots_[static_cast<std::size_t>(weight)];
  const TraceRange range(&trace_, device_row_, "calibrate");
  const double begin_us = now_us();
  double bias = 0;
  if (slot.codec->learns()) {
    const RefreshOutcome outcome =
        slot.codec->refresh(g, options_.learn, *learner_, slot.moments(slot.live),
                            compress_scratch_.as<float>(), compute);
    stats_.refreshed += outcome.refreshed ? 1 : 0;
    bias = outcome.bias_after;
  } else {
    bias = relative_bias(slot.codec->bias(g, compress_scratch_.as<float>(), compute));
  }
  // A gradient that tells nothing; the next one may.
  if (!std::isfinite(bias) || (bias == 0 && slot.codec->learns())) return;
  bias_sum_ += bias;
  ++bias_count_;
  refresh_.measured(committed_steps_, weight);
  stats_.learn_seconds += (now_us() - begin_us) * 1e-6;
}

// The lanes' tasks run while the slot belongs to the executor. What they read of the step that is
// being applied is written before release(); a speculative host task carries its own copy.
void SubspaceEngine::submit(int weight, When when) {
  WeightSlot& slot = *slots_[static_cast<std::size_t>(weight)];
  if (slot.has_core()) slot.scan(true);
  slot.submitted = true;
  Payload payload;
  payload.layer = weight;
  payload.name = slot.spec.name;
  payload.tasks[index(Lane::kApply)] = [this, &slot, live = slot.live](StreamRef stream) {
    if (slot.spec.tier == CoreTier::kDevice && slot.has_core()) {
      slot.update_core(live, live, slot.adam, slot.factor, {});
    }
    slot.apply(apply_scratch_.as<float>(), stream);
  };
  payload.hold_before = Lane::kApply;
  slot.target = slot.live;
  if (slot.spec.tier == CoreTier::kHost && slot.has_core()) add_link_tasks(slot, payload, when);
  executor_->submit(std::move(payload));
}

void SubspaceEngine::add_link_tasks(WeightSlot& slot, Payload& payload, When when) {
  payload.bytes[index(Lane::kD2h)] = slot.plan.d2h_bytes;
  payload.bytes[index(Lane::kH2d)] = slot.plan.h2d_bytes;
  payload.tasks[index(Lane::kD2h)] = [this, &slot](StreamRef stream) {
    const std::span<const std::byte> source = slot.outgoing();
    d2h_.copy(slot.gradient.data(), source.data(), source.size(), stream);
  };
  payload.tasks[index(Lane::kH2d)] = [this, &slot](StreamRef stream) {
    h2d_.copy(slot.arrived.data(), slot.direction.data(), slot.direction.size(), stream);
  };
  const int from = slot.live;
  const bool can_forecast = when == When::kGathering && slot.steps > 0;
  if (!norm_mode_.speculative() || !can_forecast) {
    payload.hold_before = Lane::kHost;
    payload.tasks[index(Lane::kHost)] = [this, &slot, from](StreamRef) {
      slot.update_core(from, from, slot.adam, slot.factor, host_scratch_.as<float>());
    };
    return;
  }
  slot.target = 1 - from;
  slot.forecast = {slot.adam, forecast_factor_};  // As in the last step, but for its number.
  slot.forecast->adam.step = slot.steps + 1;
  payload.tasks[index(Lane::kHost)] = [this, &slot, from, to = slot.target,
                                       forecast = *slot.forecast](StreamRef) {
    slot.update_core(from, to, forecast.adam, forecast.factor, host_scratch_.as<float>());
  };
}

GradientNorm SubspaceEngine::end_backward() {
  double sum_squares = 0;
  bool finite = true;
  for (const auto& slot : slots_) {  // In this order whatever arrived first: equal bits.
    if (slot->backwards == 0) continue;
    if (!slot->scanned) slot->scan(false);
    sum_squares += slot->scan_result.sum_squares;
    finite = finite && slot->scan_result.finite;
  }
  return {std::sqrt(sum_squares), finite};
}

bool SubspaceEngine::has_gradient() const noexcept {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const auto& slot) { return slot->backwards > 0; });
}

void SubspaceEngine::drop() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]->submitted) executor_->recall(static_cast<int>(i));
    slots_[i]->clear();
  }
}

StepOutcome SubspaceEngine::step(const StepRequest& request) {
  SLUICEWAY_CHECK(request.hyper.size() == slots_.size() && request.weights.size() == slots_.size(),
                  "SubspaceEngine: step with ", request.hyper.size(), " hyperparameters and ",
                  request.weights.size(), " weights, expected ", slots_.size(), " of each");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    check_shape(*slots_[i], request.weights[i], "weight");
    SLUICEWAY_CHECK(request.weights[i].dtype == slots_[i]->spec.dtype, "SubspaceEngine: weight ",
                    slots_[i]->spec.name, " is ", to_string(request.weights[i].dtype),
                    ", expected ", to_string(slots_[i]->spec.dtype),
                    "; make a new optimizer after changing a parameter");
  }
  StepOutcome outcome;
  const GradientNorm cores = end_backward();
  const double factor = static_cast<double>(request.factor);
  outcome.grad_norm =
      std::sqrt(factor * factor * cores.norm * cores.norm + request.other_sum_squares);
  if (!cores.finite || !std::isfinite(outcome.grad_norm)) {
    drop();
    outcome.skipped = true;
    return outcome;
  }
  outcome.clip_factor = clip_factor(outcome.grad_norm, options_.max_norm);
  const bool redone = begin_updates(request, request.factor * outcome.clip_factor);
  executor_->release();
  for (const auto& slot : slots_) {
    if (slot->backwards > 0) slot->commit(options_.promised_backwards);
  }
  ++committed_steps_;
  forecast_factor_ = request.factor;  // That a step will be clipped is not forecast.
  tune_schedule(redone);
  return outcome;
}

bool SubspaceEngine::begin_updates(const StepRequest& request, float factor) {
  bool redone = false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    WeightSlot& slot = *slots_[i];
    if (slot.backwards == 0) continue;
    const WeightHyper& hyper = request.hyper[i];
    const AdamHyper adam{hyper.lr, hyper.beta1, hyper.beta2, hyper.eps, 0, slot.steps + 1};
    if (slot.forecast && !holds(*slot.forecast, adam, factor)) {
      executor_->recall(static_cast<int>(i));
      slot.submitted = false;
      slot.forecast.reset();
      ++stats_.recalled;
      redone = true;
    }
    slot.adam = adam;
    slot.factor = factor;
    slot.weight = request.weights[i];
    slot.residual_due = slot.residual && !slot.residual_done && residual_turn(static_cast<int>(i));
    if (slot.residual_due) {
      slot.residual_gradient = slot.total;
      slot.residual_step = residual_step(slot, hyper);
      slot.residual_step.factor = request.unscale;
    }
    const double own_scale = static_cast<double>(slot.codec->default_scale());
    const double scale = hyper.scale > 0 ? hyper.scale : own_scale;
    slot.update.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
    slot.update.alpha = static_cast<float>(-hyper.lr * scale);
    slot.update.rounding = slot.spec.rounding;
    slot.update.key = {options_.seed, static_cast<std::uint64_t>(committed_steps_), slot.hash,
                       kWeightRoundingPurpose};
    if (!slot.submitted) submit(static_cast<int>(i), When::kStepping);
  }
  return redone;
}

double SubspaceEngine::wait(int weight) {
  const WeightSlot& slot = *slots_.at(static_cast<std::size_t>(weight));
  // A payload of the step that is being gathered changes no weight yet, and is held: a recomputed
  // forward of a checkpointed segment must not wait for it.
  if (slot.submitted || (options_.order == Order::kBarrier && gathering())) return 0;
  const double begin_us = now_us();
  const double stall = executor_->wait(weight);
  if (stall > 0 && trace_.enabled()) trace_.add_range(device_row_, "stall", begin_us, now_us());
  stats_.stall_seconds += stall;
  return stall;
}

void SubspaceEngine::synchronize() {
  for (std::size_t i = 0; i < slots_.size(); ++i) wait(static_cast<int>(i));
}

void SubspaceEngine::finish() noexcept {
  try {
    drop();
    synchronize();
  } catch (const std::exception&) {
    // A failed executor has drained its lanes; nothing runs any more, which is all that is asked.
    for (const auto& slot : slots_) slot->clear();
  }
}

bool SubspaceEngine::gathering() const noexcept {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const auto& slot) { return slot->submitted; });
}

// ---- Calibration, state -------------------------------------------------------------------------

bool SubspaceEngine::calibration_due() const {
  if (options_.refresh.source != CalibrationSource::kClosure) return false;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (refresh_.due(committed_steps_, static_cast<int>(i))) return true;
  }
  return false;
}

void SubspaceEngine::begin_calibration() {
  SLUICEWAY_CHECK(!has_gradient(),
                  "SubspaceEngine: calibration with a gradient accumulated, "
                  "expected it between steps; call step() or drop() first");
  synchronize();
  calibrating_ = true;
}

void SubspaceEngine::end_calibration() { calibrating_ = false; }

void SubspaceEngine::forecast_backwards(int weight, int backwards) {
  SLUICEWAY_CHECK(backwards > 0, "SubspaceEngine: backwards a step are ", backwards,
                  ", expected 1 or more");
  if (options_.promised_backwards == 0) quiescent_slot(weight).expected = backwards;
}

WeightSlot& SubspaceEngine::quiescent_slot(int weight) {
  wait(weight);
  return *slots_.at(static_cast<std::size_t>(weight));
}

void SubspaceEngine::set_committed_steps(std::int64_t steps) {
  SLUICEWAY_CHECK(steps >= 0, "SubspaceEngine: committed steps are ", steps,
                  ", expected 0 or more");
  committed_steps_ = steps;
}

}  // namespace sluiceway
