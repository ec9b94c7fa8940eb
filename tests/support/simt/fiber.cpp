#include "tests/support/simt/fiber.h"

namespace sluiceway::simt {
namespace {

constexpr std::uint64_t kCanary = 0x5AFE57AC5AFE57ACULL;

}  // namespace

Fiber::Fiber(std::byte* stack, void (*body)(void*), void* argument) noexcept
    : stack_(stack), body_(body), argument_(argument) {
  *reinterpret_cast<std::uint64_t*>(stack_) = kCanary;
}

bool Fiber::overflowed() const noexcept {
  return *reinterpret_cast<const volatile std::uint64_t*>(stack_) != kCanary;
}

// ucontext makes the first switch to the stack. It costs two system calls, so later switches are
// jumps, which leave the signal mask alone.
void Fiber::start() {
  started_ = true;
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack_;
  context_.uc_stack.ss_size = kStackBytes;
  context_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&context_, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  setcontext(&context_);
}

void Fiber::enter(unsigned high, unsigned low) {
  auto* const self = reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low);
  for (;;) {
    self->body_(self->argument_);
    self->pause();
  }
}

void Fiber::resume() {
  if (_setjmp(outside_) != 0) return;
  if (started_) _longjmp(inside_, 1);
  start();
}

void Fiber::pause() {
  if (_setjmp(inside_) == 0) _longjmp(outside_, 1);
}

}  // namespace sluiceway::simt
