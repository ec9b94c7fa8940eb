// The rules of a step that the executor and the cost model share: who goes first, who waits.
//
//   order     the payload that goes first in a lane
//   barrier   the one submitted first
//   fcfs      the one submitted first
//   paper     below the transition layer the one submitted last, then the others as they came
//   edf       the layer that the next forward needs first
//
// Payloads of an earlier step go before those of a later one: their forward comes earlier.
#pragma once

#include <compare>
#include <cstdint>

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
  int transition_layer = 0;

  // `arrival` counts submissions. A payload keeps its rank in every lane.
  Rank rank(std::uint64_t step, int layer, std::uint64_t arrival) const noexcept;

  // Whether payloads wait before `lane` until the whole step has left the lanes before it.
  bool gathers_before(Lane lane) const noexcept;

  // Whether a layer's forward waits for every layer's payload.
  bool forward_waits_for_all() const noexcept;
};

}  // namespace sluiceway
