#include "runtime/schedule/step_plan.h"

namespace sluiceway {

Rank StepPlan::rank(std::uint64_t step, int layer, std::uint64_t arrival) const noexcept {
  switch (order) {
    case Order::kBarrier:
    case Order::kFcfs:
      break;
    case Order::kPaper:
      // What the transition layer left behind is deeper, and needed later.
      return layer < transition_layer ? Rank{step, 0, ~arrival} : Rank{step, 1, arrival};
    case Order::kEdf:
      return {step, 0, static_cast<std::uint64_t>(layer)};
  }
  return {step, 0, arrival};
}

bool StepPlan::gathers_before(Lane lane) const noexcept {
  return order == Order::kBarrier && lane == Lane::kHost;
}

bool StepPlan::forward_waits_for_all() const noexcept { return order == Order::kBarrier; }

}  // namespace sluiceway
