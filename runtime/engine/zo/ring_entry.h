// A weight on its way through a ring, from its place in the order of uses to its last turn.
#pragma once

#include <memory>

#include "runtime/engine/zo/weight_ring.h"

namespace sluiceway {

struct WeightRing::Entry {
  bool is_read() const noexcept { return staging.data != nullptr; }

  int use = 0;
  int next = 0;                          // Direction of its first turn without a pair.
  std::shared_ptr<const RingPass> pass;  // Set when the pass begins, before a hop may read it.
  bool lacks_arrival = false;            // It still needs a slot.
  Slot staging, arrival;                 // None if it does not come that way.
  // Ends of its hops; the entry shares `through` until the last hop is submitted.
  AtEndPtr read = std::make_shared<AtEnd>();
  AtEndPtr arrived = std::make_shared<AtEnd>();
  AtEndPtr through = std::make_shared<AtEnd>();
  Event was_read = read->event();
  Event has_arrived = arrived->event();
  Event is_through = through->event();  // It has arrived, and every turn is perturbed.
  // If steps are written into weights: the arriving step; whether the pass's missing steps were
  // submitted; and the event when they are written.
  std::uint64_t step = 0;
  bool is_brought_up = false;
  Event is_up = arrived->event();
};

}  // namespace sluiceway
