// The parts that every call of the CUDA runtime shares: faults that a test requested, the check
// that calls are allowed, counts, the driver's lock, and the last error of the calling thread.
//
// Thread safety: every call from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "tests/support/simt/driver.h"

namespace sluiceway::simt {

// Counts the call. If it returns an error, the call must return that and do nothing.
cudaError_t refused(const char* call);

inline constexpr const char* kLockTaken = "driver's lock";
inline constexpr const char* kIdleWait = "wait for idle streams";
void count(const char* call);

cudaError_t note(cudaError_t result) noexcept;  // Keeps an error as the thread's last error.
cudaError_t take_last_error() noexcept;

// Runs the body of the call of this name, without the driver's lock.
template <typename Body>
cudaError_t call(const char* name, Body body) {
  const cudaError_t refusal = refused(name);
  return note(refusal == cudaSuccess ? body() : refusal);
}

// The same with the lock. `body` may take the turn to wait for idle streams.
template <typename Body>
cudaError_t call_locked(const char* name, Body body) {
  return call(name, [&] {
    const DriverTurn turn(name);
    if constexpr (std::is_invocable_v<Body, const DriverTurn&>) {
      return body(turn);
    } else {
      return body();
    }
  });
}

// The same with the lock, once every stream is idle.
template <typename Body>
cudaError_t call_when_idle(const char* name, Body body) {
  return call_locked(name, [&](const DriverTurn& turn) {
    turn.wait_until_idle();
    return body();
  });
}

// While one exists, its thread is inside a host function of a stream.
class InHostFunction {
 public:
  InHostFunction() noexcept;
  InHostFunction(const InHostFunction&) = delete;
  InHostFunction& operator=(const InHostFunction&) = delete;
  ~InHostFunction();
};

}  // namespace sluiceway::simt
