// Places the weights of a forward: which uses share one, which stay on the device, and in which
// order turns take them.
//
// Thread safety: pure functions; TurnOrder is immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/stream/ring_client.h"
#include "runtime/engine/stream/slot_plan.h"

namespace sluiceway {

// Chooses the weights that stay on the device if there is room: as many bytes as fit, spread evenly
// among the streamed ones, so that the link has equal work throughout the forward.
// Returns the choice by weight, in the order of the forward. The chosen bytes are at most `room`,
// and no other weight would fit beside them.
std::vector<bool> choose_resident(std::span<const std::uint64_t> bytes, std::uint64_t room);

// Returns by use the first use of the same storage, which is host memory or an index in a source.
// InvalidArgument: a use without elements or storage, storages that overlap partly or differ in
// type.
std::vector<int> first_uses(std::span<const StreamedWeight> uses);

// Returns by use what `source` reads; nothing in host memory. InvalidArgument: no source.
std::vector<ReadSize> read_sizes(std::span<const StreamedWeight> uses, const WeightSource* source);

// Returns by use whether it stays on the device: all with `keep`, and of the others as many bytes
// as fit, at most `most`, where ring and weights together have `device_bytes`.
std::vector<bool> staying(std::span<const StreamedWeight> uses, std::span<const int> first_use,
                          RingDepth depth, std::uint64_t most, std::uint64_t device_bytes);

SlotPlan plan_slots(std::span<const StreamedWeight> uses, const std::vector<bool>& stays,
                    std::span<const ReadSize> reads, RingDepth depth);

// The sequence of a pass's turns: module by module, round by round within a module, and use by use
// within that. A turn is one use in one round; its position is its place in the sequence.
class TurnOrder {
 public:
  explicit TurnOrder(std::span<const StreamedWeight> uses);

  std::uint64_t position(int use, int round, int rounds) const;
  // Returns the round of the use's first turn at or after `from`; `rounds` if there is none.
  int first_round(int use, std::uint64_t from, int rounds) const;

 private:
  struct Module {
    std::uint64_t first = 0, count = 0;  // Its uses.
  };
  std::vector<Module> modules_;  // By use.
};

}  // namespace sluiceway
