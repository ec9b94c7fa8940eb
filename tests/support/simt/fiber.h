// One thread of a block, with its own stack, which its worker enters and leaves.
//
// Thread safety: one worker thread for its whole life.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

namespace sluiceway::simt {

class Fiber {
 public:
  static constexpr std::size_t kStackBytes = std::size_t{64} << 10;

  // Each resume() after a finished body runs `body(argument)` again. `stack` outlives the fiber.
  Fiber(std::byte* stack, void (*body)(void*), void* argument) noexcept;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();  // The worker calls this; runs until pause() or the end.
  void pause();   // The body calls this.
  void drop() noexcept { started_ = false; }  // The body's current run is never finished.

  bool owns(const void* address) const noexcept {
    return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(stack_) <
           kStackBytes;
  }
  bool overflowed() const noexcept;

 private:
  static void enter(unsigned high, unsigned low);
  void start();

  std::byte* stack_;
  void (*body_)(void*);
  void* argument_;
  bool started_ = false;
  jmp_buf outside_;
  jmp_buf inside_;
  ucontext_t context_;
};

}  // namespace sluiceway::simt
