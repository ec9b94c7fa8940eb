// The gathering half of a step: gradients are compressed as they come, and payloads leave.
#include <utility>

#include "kernels/base/check.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/subspace/subspace_engine.h"
#include "runtime/engine/subspace/subspace_lanes.h"

namespace sluiceway {

using subspace_lanes::kApply, subspace_lanes::kD2h, subspace_lanes::kH2d, subspace_lanes::kHost;

void SubspaceEngine::prepare(std::span<const WeightHyper> hyper,
                             std::span<const AnyMatrix> weights) {
  SLUICEWAY_CHECK(hyper.size() == weights_.size() && weights.size() == weights_.size(),
                  "SubspaceEngine: prepare with ", hyper.size(), " hyperparameters and ",
                  weights.size(), " weights, expected ", weights_.size(), " of each");
  early_.resize(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) early_[i] = {hyper[i], weights[i]};
}

void SubspaceEngine::hold_residual(int index) {
  SubspaceWeight& weight = *weights_.at(at(index));
  weight.hold_gradient(budget());
  weight.residual_at_once = false;
}

void SubspaceEngine::add_gradient(int index, const AnyMatrix& g, const AnyMatrix& total,
                                  StreamRef compute) {
  SubspaceWeight& weight = *weights_.at(at(index));
  check_shape(weight, g, "gradient");
  compute_ = compute;
  if (calibration_.active()) return calibrate(index, g, compute);
  SLUICEWAY_CHECK(!weight.gathering.residual_done, "SubspaceEngine: ", weight.spec.name,
                  " gets a gradient after the last of the ", gate_.expected(index),
                  " backwards that were promised for a step, expected step() first; set accumulate "
                  "to the true number, or to \"auto\"");
  const bool prepared = early_.size() == weights_.size();
  SLUICEWAY_CHECK(!weight.residual || !weight.residual_at_once || prepared,
                  "SubspaceEngine: ", weight.spec.name,
                  " gets a gradient before prepare(), expected it first: residuals are applied at "
                  "once");
  if (weight.residual) {
    check_shape(weight, total, "sum of gradients");
    weight.gathering.total = total;
  }
  // Unless more backwards come than were forecast, no forward of ours may have read the weight
  // since its last update. The thread itself waits: the records of the step at hand are written
  // next.
  if (!gate_.take_back(index)) wait(index);
  const bool first = gate_.backwards(index) == 0;
  // A codec that waits for its first projectors has compressed nothing but zeros so far.
  const bool may_calibrate = first || weight.codec->wants_calibration();
  if (may_calibrate && calibration_.due(committed_steps(), index, weight)) {
    calibrate(index, g, compute);
  }
  {
    const TraceRange range(&trace(), lanes_.device_row(), "compress");
    weight.codec->compress(g, first ? 0.0F : 1.0F, weight.staging.core(),
                           compress_scratch_.as<float>(), compute);
  }
  gate_.note_gradient(index);
  // Now: the residual uses the gradient up.
  if (!weight.has_core()) {
    ScanResult whole;
    overflow_scan(total, &whole, compute);
    gate_.note_scan(index, whole);
  }
  if (!gate_.is_complete(index)) return;
  if (weight.residual && weight.residual_at_once) apply_residual_early(index, compute);
  send(index, When::kGathering);
}

void SubspaceEngine::calibrate(int index, const AnyMatrix& g, StreamRef compute) {
  const TraceRange range(&trace(), lanes_.device_row(), "calibrate");
  calibration_.measure(committed_steps(), index, *weights_[at(index)], g,
                       compress_scratch_.as<float>(), compute);
}

void SubspaceEngine::apply_residual_early(int index, StreamRef compute) {
  SubspaceWeight& weight = *weights_[at(index)];
  const TraceRange range(&trace(), lanes_.device_row(), "residual");
  const Early& early = early_.at(at(index));
  if (residual_turn(index)) {
    weight.gathering.residual_trained = weight.apply_residual(
        weight.gathering.total, early.weight, residual_step(weight, early.hyper),
        compress_scratch_.as<float>(), compute);
  }
  weight.gathering.residual_done = true;
}

void SubspaceEngine::scan(int index, bool leaving) {
  CoreStaging& staging = weights_[at(index)]->staging;
  if (leaving && staging.packs()) {
    gate_.note_scan(index, staging.pack(compute_));
  } else if (!gate_.is_scanned(index)) {
    gate_.note_scan(index, staging.scan(compute_));
  }
}

GradientNorm SubspaceEngine::end_backward() {
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (gate_.backwards(index) > 0) scan(index, false);
  }
  return gate_.norm();
}

// The lanes' tasks run while the weight belongs to the executor. What they read of the step that is
// being applied is written before commit(); a speculative host task carries its own copy.
void SubspaceEngine::send(int index, When when) {
  SubspaceWeight& weight = *weights_[at(index)];
  if (weight.has_core()) scan(index, true);
  Payload payload;
  payload.key = index;
  payload.deadline = static_cast<std::uint64_t>(index);
  payload.name = weight.spec.name;
  weight.gathering.target = weight.moments.live();
  std::optional<Forecast> forecast;
  if (weight.crosses()) forecast = add_link_hops(index, payload, when);
  if (!payload.hold_before) payload.hold_before = payload.hops.size();
  payload.hops.push_back({kApply, [this, &weight, live = weight.moments.live()](StreamRef stream) {
                            if (weight.has_core() && !weight.crosses()) {
                              weight.staging.update(weight.moments, live, live,
                                                    weight.applying.adam, weight.applying.factor,
                                                    {}, stream);
                            }
                            weight.apply(apply_scratch_.as<float>(), stream);
                          }});
  gate_.send(index, std::move(payload), std::move(forecast));
}

std::optional<Forecast> SubspaceEngine::add_link_hops(int index, Payload& payload, When when) {
  SubspaceWeight& weight = *weights_[at(index)];
  const int from = weight.moments.live();
  const bool zero = gate_.is_zero(index);
  const std::span<const std::byte> outgoing = weight.staging.outgoing(zero);
  std::optional<Forecast> forecast;
  if (gate_.speculative() && when == When::kGathering && weight.moments.steps() > 0) {
    weight.gathering.target = weight.moments.spare();
    // As in the last step, but for its number.
    forecast = Forecast{weight.applying.adam, gate_.forecast_factor()};
    forecast->adam.step = weight.moments.steps() + 1;
  } else {
    payload.hold_before = 1;  // Before AdamW, which then reads what the gate decided.
  }
  payload.hops = {
      {kD2h,
       [this, &weight, outgoing](StreamRef stream) {
         lanes_.d2h().copy(weight.staging.gradient().data(), outgoing.data(), outgoing.size(),
                           stream);
       },
       {},
       outgoing.size()},
      {kHost,
       [this, &weight, zero, from, to = weight.gathering.target, forecast](StreamRef stream) {
         if (zero) weight.staging.arrive_as_zero();
         const AdamHyper& adam = forecast ? forecast->adam : weight.applying.adam;
         const float factor = forecast ? forecast->factor : weight.applying.factor;
         weight.staging.update(weight.moments, from, to, adam, factor, host_scratch_.as<float>(),
                               stream);
       }},
      {kH2d,
       [this, &weight](StreamRef stream) {
         const std::span<const std::byte> source = weight.staging.direction();
         lanes_.h2d().copy(weight.staging.arrived().data(), source.data(), source.size(), stream);
       },
       {},
       weight.plan.h2d_bytes}};
  return forecast;
}

}  // namespace sluiceway
