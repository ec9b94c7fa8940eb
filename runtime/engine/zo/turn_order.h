// The sequence of a pass's turns: module by module, direction by direction within a module, and use
// by use within that. A turn is one use in one direction; its position is its place in the
// sequence.
//
// Thread safety: immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/zo/zo_weight.h"

namespace sluiceway {

class TurnOrder {
 public:
  explicit TurnOrder(std::span<const ZoWeight> uses);

  std::uint64_t position(int use, int direction, int directions) const;
  // Returns the direction of the use's first turn at or after `from`; `directions` if there is
  // none.
  int first_direction(int use, std::uint64_t from, int directions) const;

 private:
  struct Module {
    std::uint64_t first = 0, count = 0;  // Its uses.
  };
  std::vector<Module> modules_;  // By use.
};

}  // namespace sluiceway
