// The rules of a step that the executor and the cost model share: which payload goes first, and
// which waits.
//
//   order     the payload that goes first in a lane
//   barrier   the one submitted first
//   fcfs      the one submitted first
//   paper     below the transition the one submitted last, then the others in order of arrival
//   edf       the one that the next forward needs first
//
// Payloads of an earlier step go first: their forward comes earlier.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "runtime/schedule/lane.h"

namespace sluiceway {

struct Rank {  // The lower rank goes first.
  std::uint64_t step = 0;
  std::uint64_t group = 0;
  std::uint64_t position = 0;
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

struct StepPlan {
  Order order = Order::kEdf;
  std::uint64_t transition = 0;  // Deadlines below it are last come, first served.
  LanePlan lanes;

  // `arrival` counts submissions. A payload keeps its rank in every lane.
  Rank rank(std::uint64_t step, std::uint64_t deadline, std::uint64_t arrival) const noexcept;

  // Returns the lane before which payloads wait until the whole step has left the lanes before it.
  std::optional<LaneId> gate() const noexcept;

  // True if a forward waits for every payload, not only for its own.
  bool forward_waits_for_all() const noexcept { return order == Order::kBarrier; }
};

}  // namespace sluiceway
