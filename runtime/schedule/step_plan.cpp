#include "runtime/schedule/step_plan.h"

namespace sluiceway {

Rank StepPlan::rank(std::uint64_t step, std::uint64_t deadline,
                    std::uint64_t arrival) const noexcept {
  switch (order) {
    case Order::kBarrier:
    case Order::kFcfs:
      break;
    case Order::kPaper:
      // Layers at or above the transition are deeper, and needed later.
      return deadline < transition ? Rank{step, 0, ~arrival} : Rank{step, 1, arrival};
    case Order::kEdf:
      return {step, deadline, arrival};
  }
  return {step, 0, arrival};
}

std::optional<LaneId> StepPlan::gate() const noexcept {
  return order == Order::kBarrier ? lanes.gather_before : std::nullopt;
}

}  // namespace sluiceway
