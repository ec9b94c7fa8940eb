// The second half of a step: writes what the lanes will read, then commits the step.
#include <cmath>

#include "kernels/base/check.h"
#include "runtime/engine/subspace/subspace_engine.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kWeightRoundingPurpose = 1;
constexpr std::uint32_t kResidualRoundingPurpose = 2;

}  // namespace

void SubspaceEngine::check_request(const StepRequest& request) const {
  SLUICEWAY_CHECK(
      request.hyper.size() == weights_.size() && request.weights.size() == weights_.size(),
      "SubspaceEngine: step() got ", request.hyper.size(), " hyperparameters and ",
      request.weights.size(), " weights, expected ", weights_.size(), " of each");
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const WeightSpec& spec = weights_[i]->spec;
    check_shape(*weights_[i], request.weights[i], "weight");
    SLUICEWAY_CHECK(request.weights[i].dtype == spec.dtype, "SubspaceEngine: weight ", spec.name,
                    " is ", to_string(request.weights[i].dtype), ", expected ",
                    to_string(spec.dtype), "; make a new optimizer after you change a parameter");
  }
}

StepOutcome SubspaceEngine::step(const StepRequest& request) {
  check_request(request);
  compute_.move_to_step(request.compute);
  note_scans();
  StepOutcome outcome =
      gate_.decide(request.factor, request.other_sum_squares, request.own_factors);
  if (outcome.skipped) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      outcome.residuals_kept += residual_trained(static_cast<int>(i)) ? 1 : 0;
    }
    drop();
    return outcome;
  }
  const float factor = request.factor * outcome.clip_factor;
  reached_ = compute_.reached();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const int index = static_cast<int>(i);
    const float own = request.own_factors.empty() ? 1 : request.own_factors[i];
    if (gate_.backwards(index) > 0) begin_update(index, request, factor * own);
  }
  for (const int index : gate_.commit(request.factor)) {
    SubspaceWeight& weight = *weights_[at(index)];
    weight.moments.commit(weight.gathering.target);
    weight.gathering = {};
  }
  gate_.tune(lanes_, [this] {
    try {
      ensure_spares();
      return true;
    } catch (const OutOfMemory&) {
      return false;  // Out of budget: waiting for the norm costs time, not memory.
    }
  });
  return outcome;
}

bool SubspaceEngine::residual_trained(int index) const {
  const SubspaceWeight& held = weight(index);
  return held.gathering.residual_applied && held.residual->trained(compute_.ref());
}

bool SubspaceEngine::residual_turn(int index) const noexcept {
  return (committed_steps() + index) % options_.residual_every == 0;
}

bool SubspaceEngine::keeps_total(int index) const {
  const SubspaceWeight& held = weight(index);
  return held.residual && (residual_turn(index) || !held.has_core());
}

bool SubspaceEngine::residual_applies(int index) const {
  const SubspaceWeight& held = weight(index);
  return held.residual && !held.gathering.partly_as_core && residual_turn(index);
}

ResidualStep SubspaceEngine::residual_step(const SubspaceWeight& weight,
                                           const WeightHyper& hyper) const {
  ResidualStep step;
  step.lr = hyper.lr * std::sqrt(static_cast<double>(options_.residual_every));
  step.beta2 = hyper.beta2;
  step.eps = hyper.eps;
  step.max_rms = options_.residual_max_rms;
  // The core's update applies the decay; a weight without a core has only this update.
  step.update.decay =
      weight.has_core()
          ? 1.0F
          : static_cast<float>(1 - options_.residual_every * hyper.lr * hyper.weight_decay);
  step.update.rounding = weight.spec.rounding;
  step.update.key = {options_.seed, static_cast<std::uint64_t>(committed_steps()), weight.hash,
                     kResidualRoundingPurpose};
  return step;
}

void SubspaceEngine::begin_update(int index, const StepRequest& request, float factor) {
  SubspaceWeight& weight = *weights_[at(index)];
  const WeightHyper& hyper = request.hyper[at(index)];
  const AdamHyper adam{hyper.lr,  hyper.beta1, hyper.beta2,
                       hyper.eps, 0,           weight.moments.steps() + 1};
  const bool sent = gate_.still_holds(index, adam, factor);
  Applying& applying = weight.applying;
  applying.adam = adam;
  applying.factor = factor;
  applying.weight = request.weights[at(index)];
  applying.reached = reached_;
  applying.residual_due = !weight.gathering.residual_done && residual_applies(index);
  if (applying.residual_due) {
    applying.residual_gradient = weight.gathering.total;
    applying.residual_step = residual_step(weight, hyper);
    applying.residual_step.factor = request.unscale;
  }
  const double own_scale = static_cast<double>(weight.codec->default_scale());
  const double scale = hyper.scale > 0 ? hyper.scale : own_scale;
  applying.update.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  applying.update.alpha = static_cast<float>(-hyper.lr * scale);
  applying.update.rounding = weight.spec.rounding;
  applying.update.key = {options_.seed, static_cast<std::uint64_t>(committed_steps()), weight.hash,
                         kWeightRoundingPurpose};
  if (!sent && (weight.has_core() || applying.residual_due)) send(index, When::kStepping);
}

void SubspaceEngine::ensure_spares() {
  for (const auto& weight : weights_) {
    if (weight->crosses() && !weight->moments.has_spare()) {
      weight->moments.add_spare(budget(), weight->spec.name);
    }
  }
}

}  // namespace sluiceway
