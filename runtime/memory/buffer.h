// Bytes on one tier, reserved in the budget before they are allocated.
//
// kPinned is page-aligned, with the exact size rounded up to one page, never to a power of two;
// `pages` chooses the kind of page. Other tiers are aligned to 64 bytes. On CUDA, kPinned is
// page-locked if the system allows it (PinnedBytes); on the host device it is ordinary memory.
// Contents start as zero, or as 0xCD in an eager-spill run with `Fill::kNone`.
//
// Ownership: move-only; frees its bytes and returns the reservation on destruction.
// Errors:    OutOfMemory, with byte counts; nothing was changed.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/device/device_memory.h"
#include "runtime/device/stream.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

enum class Fill { kZero, kNone };

class Buffer {
 public:
  Buffer() noexcept = default;
  Buffer(Budget& budget, Tier tier, DeviceId device, std::size_t bytes, std::string_view purpose,
         Fill fill = Fill::kZero, Pages pages = Pages::kOrdinary);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const noexcept { return static_cast<std::byte*>(held_.data); }
  std::size_t size() const noexcept { return bytes_; }
  template <typename T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data()), bytes_ / sizeof(T)};
  }

 private:
  void release() noexcept;
  Budget::Reservation reservation_;
  PinnedBytes held_;  // `locked` matters on kPinned only.
  std::size_t bytes_ = 0;
  Tier tier_ = Tier::kHost;
  Pages pages_ = Pages::kOrdinary;
  DeviceId device_ = DeviceId::host();  // An empty buffer keeps this value; it owns no memory.
};

}  // namespace sluiceway
