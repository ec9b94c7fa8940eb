#include "runtime/engine/norm_mode.h"

#include "kernels/base/check.h"

namespace sluiceway {

NormChoice parse_norm_choice(std::string_view name) {
  if (name == "auto") return NormChoice::kAuto;
  if (name == "exact") return NormChoice::kExact;
  if (name == "speculative") return NormChoice::kSpeculative;
  throw InvalidArgument(
      concat("norm_mode: is \"", name, "\", expected auto, exact or speculative"));
}

void NormModeChooser::note_step(bool redone) noexcept {
  redone_rate_ += 0.02 * ((redone ? 1.0 : 0.0) - redone_rate_);
}

bool NormModeChooser::prefers_speculative(const std::vector<LayerCost>& costs,
                                          const LanePlan& lanes) const {
  if (redone_rate_ > kMaxRedoneRate) return false;
  const int transition = transition_layer(costs, lanes);
  const double exact = predict_makespan(costs, lanes, order_, NormBarrier::kExact, transition);
  const double at_once = predict_makespan(costs, lanes, order_, NormBarrier::kNone, transition);
  return exact > kWorthwhileGain * at_once;
}

}  // namespace sluiceway
