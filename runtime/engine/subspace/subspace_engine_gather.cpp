// The first half of a step: compresses gradients as they arrive, and sends payloads.
#include <mutex>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/compress.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/subspace/subspace_engine.h"
#include "runtime/engine/subspace/subspace_lanes.h"

namespace sluiceway {

using subspace_lanes::kApply, subspace_lanes::kD2h, subspace_lanes::kH2d, subspace_lanes::kHost;

void SubspaceEngine::prepare(std::span<const WeightHyper> hyper,
                             std::span<const AnyMatrix> weights) {
  SLUICEWAY_CHECK(hyper.size() == weights_.size() && weights.size() == weights_.size(),
                  "SubspaceEngine: prepare() got ", hyper.size(), " hyperparameters and ",
                  weights.size(), " weights, expected ", weights_.size(), " of each");
  early_.resize(weights_.size());
  for (std::size_t i = 0; i < weights_.size(); ++i) early_[i] = {hyper[i], weights[i]};
}

void SubspaceEngine::hold_residual(int index) {
  SubspaceWeight& weight = *weights_.at(at(index));
  hold_gradient(index);
  weight.residual_at_once = false;
}

void SubspaceEngine::add_gradient(int index, const AnyMatrix& g, const AnyMatrix& total,
                                  StreamRef compute) {
  SubspaceWeight& weight = *weights_.at(at(index));
  check_shape(weight, g, "gradient");
  compute_.move_to(compute);
  if (calibration_.active()) return calibrate(index, g, compute);
  if (weight.residual) check_shape(weight, total, "sum of gradients");
  const float beta = begin_gathering(index);
  if (weight.residual) weight.gathering.total = total;
  const bool first = beta == 0;
  // A codec that waits for its first projectors has compressed only zeros so far.
  const bool may_calibrate = first || weight.codec->wants_calibration();
  if (may_calibrate && !options_.shared && calibration_.due(committed_steps(), index, weight)) {
    calibrate(index, g, compute);
  }
  {
    const TraceRange range(&lanes_.trace(), lanes_.device_row(), "compress");
    weight.codec->compress(g, beta, weight.staging.core(), compress_scratch_.as<float>(), compute);
  }
  weight.gathering.begun = true;
  note_gradient(index);
  gathered(index, compute);
}

void SubspaceEngine::add_core(int index, const AnyMatrix& core, bool whole, StreamRef compute) {
  SubspaceWeight& weight = *weights_.at(at(index));
  const CoreShape shape = weight.plan.core;
  SLUICEWAY_CHECK(core.rows == shape.rows && core.cols == shape.cols,
                  "SubspaceEngine: the core of ", weight.spec.name, " is ", core.rows, "x",
                  core.cols, ", expected ", shape.rows, "x", shape.cols);
  SLUICEWAY_CHECK(!calibration_.active() && !weight.codec->wants_calibration(),
                  "SubspaceEngine: ", weight.spec.name,
                  " got a core while its projectors wait for a gradient; pass gradients while "
                  "wants_gradient() returns true");
  compute_.move_to(compute);
  const float beta = begin_gathering(index);
  {
    const TraceRange range(&lanes_.trace(), lanes_.device_row(), "add core");
    sluiceway::compress(weight.staging.core(), beta, core, compute);
  }
  weight.gathering.begun = weight.gathering.partly_as_core = true;
  if (!whole) return;
  note_gradient(index);
  gathered(index, compute);
}

void SubspaceEngine::note_gradient(int index) {
  gate_.note_gradient(index);
  weights_[at(index)]->gathering.scan_enqueued = false;
}

bool SubspaceEngine::wants_gradient(int index) const {
  const SubspaceWeight& held = weight(index);
  return (held.residual && residual_turn(index)) || calibration_.active() ||
         calibration_.due(committed_steps(), index, held);
}

float SubspaceEngine::begin_gathering(int index) {
  const SubspaceWeight& weight = *weights_[at(index)];
  SLUICEWAY_CHECK(!weight.gathering.residual_done, "SubspaceEngine: ", weight.spec.name,
                  " got a gradient after the last of the ", gate_.expected(index),
                  " backwards promised for a step; call step() first, or set accumulate to the "
                  "true number or to \"auto\"");
  const bool prepared = early_.size() == weights_.size();
  SLUICEWAY_CHECK(!weight.residual || !weight.residual_at_once || prepared,
                  "SubspaceEngine: ", weight.spec.name,
                  " got a gradient before prepare(); call prepare() first, because residuals are "
                  "applied at once");
  // Perhaps no forward has read the weight since its last update, unless more backwards come than
  // forecast. The thread itself waits, because it writes the records of the new step next.
  if (!gate_.take_back(index)) wait(index);
  return weight.gathering.begun ? 1.0F : 0.0F;
}

void SubspaceEngine::gathered(int index, StreamRef compute) {
  const SubspaceWeight& held = weight(index);
  const bool complete = gate_.is_complete(index);
  const bool early = complete && held.residual && held.residual_at_once;
  // Where the residual comes now, it scans the gradient in a pass that it makes anyhow.
  if (!held.has_core() && !(early && residual_applies(index))) {
    overflow_scan(held.gathering.total, scans_.slot(at(index)), compute);
    scanned(index);
  }
  if (!complete || options_.shared) return;
  if (early) apply_residual_early(index, compute);
  // Of a weight without a core nothing is left to do then.
  if (held.has_core() || !held.gathering.residual_done) send(index, When::kGathering);
}

void SubspaceEngine::averaged(int index) {
  const SubspaceWeight& held = weight(index);
  SLUICEWAY_CHECK(options_.shared && gate_.backwards(index) > 0, "SubspaceEngine: ", held.spec.name,
                  options_.shared ? " has no gradient" : " is not shared", " in averaged()");
  gate_.forget_scan(index);
  weights_[at(index)]->gathering.scan_enqueued = false;
  if (!held.has_core()) {
    overflow_scan(held.gathering.total, scans_.slot(at(index)), compute_.ref());
    scanned(index);
  } else if (gate_.is_complete(index)) {
    gate_.take_back(index);
    send(index, When::kGathering);
  }
}

bool SubspaceEngine::calibrates(int index) const {
  const SubspaceWeight& held = weight(index);
  const bool may = !held.gathering.begun || held.codec->wants_calibration();
  return calibration_.active() || (may && calibration_.due(committed_steps(), index, held));
}

void SubspaceEngine::calibrate_on(int index, const AnyMatrix& g, StreamRef compute) {
  check_shape(weight(index), g, "gradient");
  compute_.move_to(compute);
  calibrate(index, g, compute);
}

void SubspaceEngine::calibrate(int index, const AnyMatrix& g, StreamRef compute) {
  const TraceRange range(&lanes_.trace(), lanes_.device_row(), "calibrate");
  calibration_.measure(committed_steps(), index, *weights_[at(index)], g,
                       compress_scratch_.as<float>(), compute);
}

void SubspaceEngine::apply_residual_early(int index, StreamRef compute) {
  SubspaceWeight& weight = *weights_[at(index)];
  const TraceRange range(&lanes_.trace(), lanes_.device_row(), "residual");
  const Early& early = early_.at(at(index));
  if (residual_applies(index)) {
    ResidualStep step = residual_step(weight, early.hyper);
    if (!weight.has_core()) step.scan = scans_.slot(at(index));
    weight.apply_residual(weight.gathering.total, early.weight, step, compress_scratch_.as<float>(),
                          compute);
    if (!weight.has_core()) scanned(index);
    weight.gathering.residual_applied = true;
  }
  weight.gathering.residual_done = true;
}

void SubspaceEngine::scan(int index, bool leaving) {
  CoreStaging& staging = weights_[at(index)]->staging;
  if (leaving && staging.packs()) {
    staging.pack(scans_.slot(at(index)), compute_.ref());
  } else if (!weights_[at(index)]->gathering.scan_enqueued) {
    staging.scan(scans_.slot(at(index)), compute_.ref());
  } else {
    return;
  }
  scanned(index);
}

// Without a copy the result is already here; with one, note_scans() fetches it. A known result of
// the same gradient, from before it was packed, is kept.
void SubspaceEngine::scanned(int index) {
  weights_[at(index)]->gathering.scan_enqueued = true;
  scans_fetched_ = false;
  if (!scans_.copies()) gate_.note_scan(index, scans_.get(at(index)));
}

bool SubspaceEngine::scans_missing() const {
  for (int index = 0; index < static_cast<int>(weights_.size()); ++index) {
    if (gate_.backwards(index) > 0 && !gate_.is_scanned(index)) return true;
  }
  return false;
}

void SubspaceEngine::note_scans() {
  if (!scans_missing()) return;
  end_backward();
  for (int index = 0; index < static_cast<int>(weights_.size()); ++index) {
    if (gate_.backwards(index) == 0 || gate_.is_scanned(index)) continue;
    gate_.note_scan(index, scans_.get(at(index)));
  }
}

void SubspaceEngine::end_backward() {
  for (int index = 0; index < static_cast<int>(weights_.size()); ++index) {
    if (gate_.backwards(index) > 0) scan(index, false);
  }
  if (scans_fetched_ || !scans_missing()) return;
  scans_.fetch(lanes_.compute(compute_.ref()));
  scans_fetched_ = true;
}

GradientNorm SubspaceEngine::gathered_norm() {
  note_scans();
  return gate_.norm();
}

ScanResult SubspaceEngine::gradient_scan(int index) {
  note_scans();
  return gate_.scan(index);
}

// The lanes' tasks run while the weight belongs to the executor. Everything that they read about
// the step being applied is written before commit(); a speculative host task carries its own copy.
void SubspaceEngine::send(int index, When when) {
  SubspaceWeight& weight = *weights_[at(index)];
  if (weight.has_core()) scan(index, true);
  Payload payload;
  payload.key = index;
  payload.deadline = static_cast<std::uint64_t>(index);
  payload.name = weight.spec.name;
  weight.gathering.target = weight.moments.live();
  std::optional<Forecast> forecast;
  if (weight.crosses()) {
    payload.after = compute_.reached();
    forecast = add_link_hops(index, payload, when);
  }
  if (!payload.hold_before) payload.hold_before = payload.hops.size();
  payload.hops.push_back({kApply, [this, &weight, live = weight.moments.live()](StreamRef stream) {
                            enqueue_wait(stream, weight.applying.reached);
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
    // Same as in the last step, except for its number.
    forecast = Forecast{weight.applying.adam, gate_.forecast_factor()};
    forecast->adam.step = weight.moments.steps() + 1;
  } else {
    payload.hold_before = 1;  // Before AdamW, which then uses the gate's decision.
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
         std::unique_lock scratch(host_scratch_mutex_, std::defer_lock);
         if (host_scratch_.size() > 0) scratch.lock();
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
