#include "runtime/engine/subspace/subspace_engine.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/subspace/subspace_lanes.h"

namespace sluiceway {
namespace {

// Returns the bytes of a scratch buffer that serves every weight in turn.
std::size_t largest(const Calibration::Weights& weights,
                    std::size_t (SubspaceWeight::*elems)() const noexcept) {
  std::size_t most = 0;
  for (const auto& weight : weights) most = std::max(most, ((*weight).*elems)());
  return most * sizeof(float);
}

AutoCodec choose_codec(const std::vector<WeightSpec>& specs, const SubspaceOptions& options,
                       const Budget& budget) {
  RunShape run = options.run;
  run.backwards = std::max(1, options.gate.promised_backwards);
  run.refresh_every = options.refresh.every;
  run.residual_every = options.residual_every;
  run.speculative = NormModeChooser(options.gate.norm, options.lanes.order).speculative();
  Budget::Limits free{};
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    free[tier] = budget.limit(static_cast<Tier>(tier)) - budget.used(static_cast<Tier>(tier));
  }
  return auto_codec(specs, options.lanes.device, free, run);
}

Calibration::Weights make_weights(std::vector<WeightSpec> specs, std::string_view automatic,
                                  DeviceId device, Budget& budget) {
  SLUICEWAY_CHECK(!specs.empty(), "SubspaceEngine: 0 weights, expected at least one");
  Calibration::Weights weights;
  weights.reserve(specs.size());
  for (WeightSpec& spec : specs) {
    if (spec.codec.name == "auto") spec.codec.name = automatic;
    weights.push_back(std::make_unique<SubspaceWeight>(std::move(spec), device, budget));
  }
  return weights;
}

}  // namespace

SubspaceEngine::SubspaceEngine(SubspaceOptions options, std::vector<WeightSpec> weights,
                               std::unique_ptr<ProjectorLearner> learner)
    : GatedEngine(lanes_, gate_),
      options_(std::move(options)),
      lanes_(options_.lanes,
             subspace_lanes::specs(options_.device_cpu, options_.lane_cpu, options_.host_threads),
             subspace_lanes::kPlan, static_cast<int>(weights.size())),
      automatic_(choose_codec(weights, options_, lanes_.budget())),
      weights_(make_weights(std::move(weights), automatic_.name, lanes_.device(), lanes_.budget())),
      gate_(options_.gate, options_.lanes.order, lanes_.executor(),
            static_cast<int>(weights_.size())),
      calibration_(options_.refresh, options_.learn, std::move(learner), weights_),
      compress_scratch_(
          budget(), Tier::kDevice, lanes_.device(),
          largest(weights_, options_.refresh.every > 0 ? &SubspaceWeight::refresh_scratch_elems
                                                       : &SubspaceWeight::scratch_elems),
          "scratch of compress", Fill::kNone),
      apply_scratch_(budget(), Tier::kDevice, lanes_.device(),
                     largest(weights_, &SubspaceWeight::scratch_elems), "scratch of apply",
                     Fill::kNone),
      host_scratch_(budget(), Tier::kHost, lanes_.device(),
                    largest(weights_, &SubspaceWeight::host_scratch_elems), "scratch of AdamW",
                    Fill::kNone),
      stream_scratch_(budget().reserve(Tier::kDevice, engine_scratch_bytes(lanes_.device()),
                                       "scratch of the streams that compute")),
      held_(options_.residual_every),
      scans_(budget(), lanes_.device(), weights_.size(), "scans of gradients"),
      compute_(lanes_) {
  prepare_own_stream(lanes_.stream(subspace_lanes::kApply));
  const int promised = options_.gate.promised_backwards;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    weights_[i]->residual_at_once = options_.residual_at_once && promised > 0;
    if (!weights_[i]->residual_at_once || promised > 1) hold_gradient(static_cast<int>(i));
  }
  if (gate_.speculative()) ensure_spares();
}

SubspaceEngine::~SubspaceEngine() {
  lanes_.stop();
  try {
    wait_for(compute_.ref());  // It may still use our memory.
  } catch (...) {              // A failed device runs nothing any more.
  }
}

void SubspaceEngine::check_shape(const SubspaceWeight& weight, const AnyMatrix& matrix,
                                 const char* what) const {
  SLUICEWAY_CHECK(matrix.rows == weight.spec.rows && matrix.cols == weight.spec.cols,
                  "SubspaceEngine: ", what, " of ", weight.spec.name, " is ", matrix.rows, "x",
                  matrix.cols, ", expected ", weight.spec.rows, "x", weight.spec.cols,
                  "; make a new optimizer after you change a parameter");
}

void SubspaceEngine::acquire(int index, StreamRef compute) {
  if (!gate_.holds_back(index)) compute_.acquire(index, compute);
}

void SubspaceEngine::hold_gradient(int index) {
  SubspaceWeight& weight = *weights_[at(index)];
  const std::uint64_t bytes = weight.plan.held_bytes;
  if (bytes == 0 || weight.holds_gradient) return;
  const std::string purpose = "the gradient of " + weight.spec.name;
  if (weight.has_core()) {
    held_.add(budget(), at(index % options_.residual_every), bytes, purpose);
  } else {
    held_.add_to_all(budget(), bytes, purpose);  // Its norm is computed in every step.
  }
  weight.holds_gradient = true;
}

void SubspaceEngine::wait(int index) {
  if (!gate_.holds_back(index)) lanes_.wait(index);
}

void SubspaceEngine::wait_for_all(int index) {
  wait(index);
  wait_for(compute_.ref());
}

void SubspaceEngine::synchronize() {
  for (std::size_t i = 0; i < weights_.size(); ++i) wait(static_cast<int>(i));
}

void SubspaceEngine::drop() {
  gate_.drop();
  for (const auto& weight : weights_) weight->gathering = {};
}

void SubspaceEngine::forget_gradients() {
  for (const auto& weight : weights_) weight->gathering = {};
}

// ---- Calibration, state, numbers ----------------------------------------------------------------

int SubspaceEngine::uncalibrated() const {
  return static_cast<int>(std::count_if(weights_.begin(), weights_.end(), [](const auto& weight) {
    return weight->codec->wants_calibration();
  }));
}

void SubspaceEngine::begin_calibration() {
  SLUICEWAY_CHECK(
      !has_gradient(),
      "SubspaceEngine: calibration starts while a step has gradients; call step() or drop() first");
  synchronize();
  calibration_.begin();
}

WeightState SubspaceEngine::save_weight(int index) {
  wait_for_all(index);
  return save_state(weight(index), gate_.expected(index));
}

void SubspaceEngine::check_weight(int index, const WeightState& state) {
  wait(index);
  check_state(weight(index), state);
}

void SubspaceEngine::load_weight(int index, const WeightState& state) {
  wait_for_all(index);
  load_state(*weights_.at(at(index)), state);
  gate_.expect_backwards(index, state.backwards);
}

SubspaceStats SubspaceEngine::take_stats() {
  SubspaceStats stats;
  stats.use = lanes_.take_use();
  stats.calibration = calibration_.take_use();
  stats.host_seconds = stats.use.lane_seconds[subspace_lanes::kHost];
  stats.recalled = gate_.take_recalled();
  stats.held_bytes = held_.bytes();
  stats.speculative = gate_.speculative();
  return stats;
}

}  // namespace sluiceway
