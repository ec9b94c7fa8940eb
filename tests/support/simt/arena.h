// The memory of one device, each allocation between red zones, with a record of every byte.
//
// It is mapped twice. Kernels use the addresses that cudaMalloc gives; they can be accessed only
// while a kernel runs, so code of the host that follows one of them at rest is killed by SIGSEGV,
// and told the allocation first. The machine itself copies through the second mapping. What is
// freed is scribbled over, and kRestBytes are given out before it is again.
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
  static constexpr std::size_t kAlignment = 256;  // What CUDA promises, and no more.

  static constexpr std::size_t kRestBytes = std::size_t{8} << 20;

  static constexpr int kDevices = 2;
  static Arena& of(int device);
  static Arena* holding(const void* address) noexcept;  // Null: not memory of a device.

  // Where the machine itself finds the bytes of an address that some device has; null: none has it.
  static std::byte* host_view(const void* address) noexcept;

  int device() const noexcept { return static_cast<int>(this - &of(0)); }

  void* allocate(std::size_t bytes);  // Null: no room.
  bool release(void* pointer);        // False: not the start of an allocation.
  std::size_t free_bytes();

  bool contains(const void* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - first_ < kBytes;
  }
  Marks* marks(const void* address) const noexcept { return marks_ + offset(address); }

  // "8 bytes past the end of an allocation of 400 bytes"; for an address that is contained.
  std::string describe(const void* address);

  // While at least one is alive, kernels can follow pointers of this device.
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
  std::size_t highest_ = 0;      // The end of the pages that were ever given out.
  std::size_t used_bytes_ = 0;
  int kernels_ = 0;
};

}  // namespace sluiceway::simt
