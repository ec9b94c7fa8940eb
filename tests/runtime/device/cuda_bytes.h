// Memory of CUDA device 0 and page-locked memory for it, freed at the end of a test.
#pragma once

#include <cstddef>

#include "runtime/device/device_memory.h"

namespace sluiceway::test {

inline constexpr DeviceId kCuda0 = DeviceId::cuda(0);

class Allocation {
 public:
  using Free = void (*)(PinnedBytes, std::size_t) noexcept;
  Allocation(PinnedBytes held, std::size_t bytes, Free free)
      : held_(held), bytes_(bytes), free_(free) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() { free_(held_, bytes_); }
  char* data() const { return static_cast<char*>(held_.data); }
  std::size_t size() const { return bytes_; }
  bool locked() const { return held_.locked; }

 private:
  PinnedBytes held_;
  std::size_t bytes_;
  Free free_;
};

inline Allocation on_device(std::size_t bytes) {
  return {{allocate_device_bytes(kCuda0, bytes), false},
          bytes,
          [](PinnedBytes held, std::size_t size) noexcept {
            free_device_bytes(kCuda0, held.data, size);
          }};
}

inline Allocation pinned(std::size_t bytes) {
  return {allocate_pinned_bytes(kCuda0, bytes), bytes,
          [](PinnedBytes held, std::size_t size) noexcept { free_pinned_bytes(held, size); }};
}

}  // namespace sluiceway::test
