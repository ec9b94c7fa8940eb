// What every call of the CUDA runtime has in common: faults that a test asked for, calls where none
// is allowed, and the last error of the calling thread.
//
// Thread safety: every call from any thread.
#pragma once

#include <cuda_runtime_api.h>

namespace sluiceway::simt {

// Other than success: what the call returns without having done anything.
cudaError_t refused(const char* call);

cudaError_t note(cudaError_t result) noexcept;  // The thread's last error, if it is one.
cudaError_t take_last_error() noexcept;

// The body of the call of this name.
template <typename Body>
cudaError_t call(const char* name, Body body) {
  const cudaError_t refusal = refused(name);
  return note(refusal == cudaSuccess ? body() : refusal);
}

// While one is alive, its thread is inside a host function of a stream.
class InHostFunction {
 public:
  InHostFunction() noexcept;
  InHostFunction(const InHostFunction&) = delete;
  InHostFunction& operator=(const InHostFunction&) = delete;
  ~InHostFunction();
};

}  // namespace sluiceway::simt
