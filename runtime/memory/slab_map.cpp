#include "runtime/memory/slab_map.h"

#include <algorithm>
#include <iterator>

namespace sluiceway {

SlabMap::SlabMap(std::size_t bytes) {
  if (bytes > 0) free_.emplace(0, bytes);
}

std::optional<std::size_t> SlabMap::allocate(std::size_t bytes, std::size_t alignment) {
  const auto skipped = [alignment](std::size_t offset) {
    return (alignment - offset % alignment) % alignment;
  };
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& range) {
    return range.second >= bytes && range.second - bytes >= skipped(range.first);
  });
  if (found == free_.end()) return std::nullopt;
  const auto [first, length] = *found;
  const std::size_t before = skipped(first), offset = first + before;
  const std::size_t after = length - before - bytes;
  if (after > 0) free_.emplace_hint(std::next(found), offset + bytes, after);
  if (before > 0) {
    found->second = before;
  } else {
    free_.erase(found);
  }
  return offset;
}

void SlabMap::release(std::size_t offset, std::size_t bytes) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, offset, bytes);
}

std::size_t SlabMap::largest_free_bytes() const noexcept {
  std::size_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

}  // namespace sluiceway
