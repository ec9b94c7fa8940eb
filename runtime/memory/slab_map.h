// Which bytes of a slab are free: first fit over ranges that join when they touch.
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

  // Offset of `bytes` that are now taken, a multiple of `alignment`, or nothing if no free range
  // holds them. What lies before the first multiple in its range stays free.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment);
  void release(std::size_t offset, std::size_t bytes);

  std::size_t largest_free_bytes() const noexcept;

 private:
  std::map<std::size_t, std::size_t> free_;  // Offset to length, no two adjacent.
};

}  // namespace sluiceway
