// The memory of one device, each allocation between red zones, with a record of every byte.
//
// It is mapped twice. Kernels use the addresses that cudaMalloc returns; they are accessible only
// while a kernel runs, so host code that follows one of them at other times is told the allocation
// and then killed by SIGSEGV. The machine itself copies through the second mapping. Freed memory is
// scribbled over, and is given out again only after kRestBytes of other allocations.
//
// Thread safety: every call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "tests/support/simt/mark.h"

namespace sluiceway::simt {

class Arena {
 public:
  static constexpr std::size_t kBytes = std::size_t{256} << 20;
  static constexpr std::size_t kAlignment = 256;  // CUDA promises this, and no more.

  static constexpr std::size_t kRestBytes = std::size_t{8} << 20;

  static constexpr int kDevices = 2;
  static Arena& of(int device);
  static Arena* holding(const void* address) noexcept;  // Null: not memory of a device.

  // Returns the machine's own address for the bytes of a device address; null for others.
  static std::byte* host_view(const void* address) noexcept;

  int device() const noexcept { return static_cast<int>(this - &of(0)); }

  void* allocate(std::size_t bytes);  // Null: no room.
  bool release(void* pointer);        // False: not the start of an allocation.
  std::size_t free_bytes();

  bool contains(const void* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - first_ < kBytes;
  }
  Marks* marks(const void* address) const noexcept { return marks_ + offset(address); }

  // "8 bytes past the end of an allocation of 400 bytes"; for an address inside the arena.
  std::string describe(const void* address);

  // While at least one exists, kernels can follow pointers of this device.
  class Access {
   public:
    explicit Access(Arena& arena);
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    ~Access();

   private:
    Arena& arena_;
  };

 private:
  Arena();
  std::size_t offset(const void* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - first_;
  }
  std::size_t find_room(std::size_t span);
  void scribble(std::size_t first, std::size_t bytes, int pattern, Mark written);
  void protect(int protection);
  void grow_to(std::size_t end);
  void forget_freed(std::size_t first, std::size_t last);

  std::uintptr_t first_ = 0;
  std::byte* view_ = nullptr;
  Marks* marks_ = nullptr;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> live_;   // Offset to bytes.
  std::map<std::size_t, std::size_t> freed_;  // The same, until the memory is given out again.
  std::size_t cursor_ = kAlignment;
  std::size_t round_bytes_ = 0;  // Given out since the cursor was at the start.
  std::size_t highest_ = 0;      // End of the pages ever given out.
  std::size_t used_bytes_ = 0;
  int kernels_ = 0;
};

}  // namespace sluiceway::simt
