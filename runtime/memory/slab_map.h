// Tracks the free bytes of a slab: first fit over ranges that join when they touch.
//
// Thread safety: none; the pool's mutex guards it.
// Cost:          allocate() is linear in the free ranges, release() logarithmic.
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace sluiceway {

class SlabMap {
 public:
  explicit SlabMap(std::size_t bytes);

  // Takes `bytes` and returns their offset, a multiple of `alignment`, or nothing if no free range
  // holds them. Bytes before the first multiple in the range stay free.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment);
  void release(std::size_t offset, std::size_t bytes);

  std::size_t largest_free_bytes() const noexcept;

 private:
  std::map<std::size_t, std::size_t> free_;  // Offset to length, no two adjacent.
};

}  // namespace sluiceway
