// Bytes on one tier, reserved in the budget before they are allocated.
//
// Page-aligned for kPinned (exact size, rounded up to one page, never to a power of two; `pages`
// says of which kind), else
// aligned to 64 bytes. kPinned is page-locked on CUDA; on the host device it is ordinary memory.
// Contents start as zero, or as 0xCD in an eager-spill build where `Fill::kNone` is asked for.
//
// Ownership: move-only; frees and gives the reservation back on destruction.
// Errors:    OutOfMemory, with byte counts; nothing was changed.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "runtime/device/host_pages.h"
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

  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return bytes_; }
  template <typename T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  void release() noexcept;
  Budget::Reservation reservation_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Tier tier_ = Tier::kHost;
  Pages pages_ = Pages::kOrdinary;
  DeviceId device_ = DeviceId::host();  // Of an empty buffer, which owns no memory.
};

}  // namespace sluiceway
