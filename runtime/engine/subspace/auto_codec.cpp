#include "runtime/engine/subspace/auto_codec.h"

#include <algorithm>
#include <vector>

#include "compress/learner.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

// Counts of floating-point operations, in f64 because they exceed 2^63.
struct Flop {
  double own = 0;  // Of the weight itself, per step.
  double products = 0;
  double fit = 0;
};

Flop flop_of(const WeightSpec& spec, const CoreShape& core, const RunShape& run) {
  const auto m = static_cast<double>(spec.rows), n = static_cast<double>(spec.cols);
  const auto dm = static_cast<double>(core.rows), dn = static_cast<double>(core.cols);
  const double once = 2 * n * dm * (m + dn);  // P^T G Q; P D Q^T takes the same.
  const double times =
      static_cast<double>(run.backwards) + 1 + (spec.residual == ResidualKind::kNone ? 0 : 1);
  return {6 * m * n * static_cast<double>(run.tokens_per_step), times * once,
          leading_directions_flop(spec.rows, spec.cols, core.rows, core.cols)};
}

// Returns the first tier that is too small for these plans, during and after the fit of projectors.
std::optional<Shortage> shortage_of(std::span<const WeightPlan> plans, DeviceId device,
                                    const Budget::Limits& free, const RunShape& run) {
  std::uint64_t own = shared_bytes(plans, run.refresh_every > 0, device);
  std::uint64_t host = 0, pinned = shared_pinned_bytes(plans.size(), device);
  std::uint64_t fit = 0, host_scratch = 0;
  for (const WeightPlan& plan : plans) {
    // If the loss turns out to be scaled, every residual waits, whatever was promised.
    own += plan.device_bytes + plan.projector_bytes + plan.scan_bytes + plan.held_bytes;
    host += plan.host_bytes;
    pinned += plan.pinned_bytes;
    fit = std::max(fit, plan.fit_bytes);
    host_scratch = std::max(host_scratch, plan.host_scratch_bytes);
  }
  const Shortage all[] = {{.tier = Tier::kDevice, .needed = own + fit},
                          {.tier = Tier::kHost, .needed = host + host_scratch},
                          {.tier = Tier::kPinned, .needed = pinned}};
  for (Shortage each : all) {
    each.free = free[static_cast<std::size_t>(each.tier)];
    if (each.needed > each.free) return each;
  }
  return {};
}

}  // namespace

AutoCodec auto_codec(std::span<const WeightSpec> specs, DeviceId device, const Budget::Limits& free,
                     const RunShape& run) {
  SLUICEWAY_CHECK(run.tokens_per_step > 0 && run.steps > 0 && run.backwards > 0,
                  "auto_codec: the run has ", run.tokens_per_step, " tokens per step, ", run.steps,
                  " steps and ", run.backwards, " backwards per step, expected at least 1 of each");
  AutoCodec choice;
  Flop all;
  bool is_measured = true;                          // Every core has the measured ratio.
  bool has_own_residual = run.residual_every == 1;  // Every weight can train without a core.
  std::vector<WeightPlan> plans;
  plans.reserve(specs.size());
  for (WeightSpec spec : specs) {
    const bool chosen = spec.codec.name == "auto";
    if (chosen) spec.codec.name = "svd";
    plans.push_back(plan_weight(spec, run.speculative, device));
    if (!chosen) continue;
    is_measured = is_measured && spec.codec.ratio == kMeasuredRatio;
    choice.least_tokens =
        std::max(choice.least_tokens, spec.dtype == DType::kF32 ? kLeastTokens : kLeastTokens16Bit);
    has_own_residual = has_own_residual && spec.residual == ResidualKind::kFactored;
    const Flop flop = flop_of(spec, plans.back().core, run);
    all.own += flop.own;
    all.products += flop.products;
    all.fit += flop.fit;
  }
  choice.shortage = shortage_of(plans, device, free, run);
  if (all.own > 0) {
    const std::int64_t fits = run.refresh_every > 0 ? 1 + run.steps / run.refresh_every : 1;
    choice.products = all.products / all.own;
    choice.calibration =
        static_cast<double>(fits) * all.fit / (all.own * static_cast<double>(run.steps));
  }
  choice.pays = has_own_residual && is_measured && run.tokens_per_step >= choice.least_tokens &&
                run.steps <= kMostSteps;
  if (run.tokens_per_step >= kLargeStep) choice.most = kMostOfALargeStepRun;
  const bool cheap = choice.products + choice.calibration < choice.most;
  const std::string_view instead = has_own_residual ? "none" : "block_random";
  const bool is_wanted = choice.pays || !has_own_residual;
  choice.name = is_wanted && !choice.shortage && cheap ? "svd" : instead;
  return choice;
}

}  // namespace sluiceway
