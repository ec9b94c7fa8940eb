// The memory that a stream's worker needs to run blocks: fibers, and the running block's shared
// memory.
//
// `__shared__` variables are thread_local, so they lie in the worker's own copy of the program's
// thread-local storage; all of it counts as shared memory, and so do the bytes of dynamic().
//
// Thread safety: one worker thread, which creates it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/support/simt/fiber.h"
#include "tests/support/simt/mark.h"

namespace sluiceway::simt {

class Workshop {
 public:
  // Limit without opting in to more.
  static constexpr std::size_t kSharedBytes = std::size_t{48} << 10;
  static constexpr unsigned kThreads = 1024;

  explicit Workshop(void (*body)(void*));  // `body` runs on every fiber, with null.
  Workshop(const Workshop&) = delete;
  Workshop& operator=(const Workshop&) = delete;
  ~Workshop();

  Fiber& fiber(unsigned thread) { return *fibers_[thread]; }
  void make_fibers(unsigned threads);

  std::byte* dynamic() const noexcept { return dynamic_.first; }
  // Returns the marks of static or dynamic shared memory; null for other memory.
  Marks* marks(const void* address) const noexcept;
  // Offset of a byte of static shared memory in the program's thread-local storage; kElsewhere if
  // it is not there.
  static constexpr std::size_t kElsewhere = SIZE_MAX;
  std::size_t static_offset(const void* address) const noexcept;
  // Bytes from an address to the end of possible dynamic shared memory; 0 for other addresses.
  std::size_t dynamic_bytes_from(const void* address) const noexcept;

 private:
  struct Range {
    std::byte* first = nullptr;
    std::size_t bytes = 0;
    Marks* marks = nullptr;
    bool holds(const void* address) const noexcept {
      return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(first) <
             bytes;
    }
  };

  void (*body_)(void*);
  std::byte* stacks_;
  Range static_;
  Range dynamic_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

}  // namespace sluiceway::simt
