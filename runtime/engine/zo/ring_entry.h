// A weight on its way through a ring, from its place in the order of uses to its last turn.
#pragma once

#include <memory>

#include "runtime/engine/zo/weight_ring.h"

namespace sluiceway {

struct WeightRing::Entry {
  bool is_read() const noexcept { return staging.data != nullptr; }

  int use = 0;
  int next = 0;                          // Direction of its first turn that has no pair.
  std::shared_ptr<const RingPass> pass;  // Written when it begins, before a hop may read it.
  bool lacks_arrival = false;            // A slot that it needs.
  Slot staging, arrival;                 // None where it does not come that way.
  // For its hops; `through` is the entry's too until the last of them is submitted.
  AtEndPtr read = std::make_shared<AtEnd>();
  AtEndPtr arrived = std::make_shared<AtEnd>();
  AtEndPtr through = std::make_shared<AtEnd>();
  Event was_read = read->event();
  Event has_arrived = arrived->event();
  Event is_through = through->event();  // It has arrived, and every turn is perturbed.
  // Where steps are written into weights: the step that arrives; whether what it lacks of the
  // pass's was submitted; and when it is there.
  std::uint64_t step = 0;
  bool is_brought_up = false;
  Event is_up = arrived->event();
};

}  // namespace sluiceway
