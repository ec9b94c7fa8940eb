#include "runtime/engine/zo/turn_order.h"

#include <algorithm>
#include <cstddef>

namespace sluiceway {

TurnOrder::TurnOrder(std::span<const ZoWeight> uses) : modules_(uses.size()) {
  for (std::size_t first = 0, end = 0; first < uses.size(); first = end) {
    while (end < uses.size() && uses[end].module == uses[first].module) ++end;
    std::fill(modules_.begin() + static_cast<std::ptrdiff_t>(first),
              modules_.begin() + static_cast<std::ptrdiff_t>(end), Module{first, end - first});
  }
}

std::uint64_t TurnOrder::position(int use, int direction, int directions) const {
  const Module& module = modules_.at(static_cast<std::size_t>(use));
  return module.first * static_cast<std::uint64_t>(directions) +
         module.count * static_cast<std::uint64_t>(direction) +
         (static_cast<std::uint64_t>(use) - module.first);
}

int TurnOrder::first_direction(int use, std::uint64_t from, int directions) const {
  const std::uint64_t first = position(use, 0, directions);
  if (from <= first) return 0;
  const std::uint64_t count = modules_.at(static_cast<std::size_t>(use)).count;
  const std::uint64_t behind = (from - first + count - 1) / count;
  return static_cast<int>(std::min(behind, static_cast<std::uint64_t>(directions)));
}

}  // namespace sluiceway
