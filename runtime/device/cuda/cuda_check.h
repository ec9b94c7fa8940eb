// SLUICEWAY_CUDA_CHECK: throws CudaError if a call of the CUDA runtime fails, with the call, its
// place and the runtime's message.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>

namespace sluiceway::cuda {

void check(cudaError_t result, const char* call, const char* file, int line);

// For calls whose failure cannot be handled, such as freeing: clears the error, so that the next
// query of the runtime's last error does not return it.
void drop(cudaError_t result) noexcept;

// Returns the same error as a value, for threads that must not throw; null for success.
std::exception_ptr error_of(cudaError_t result, const char* call) noexcept;

}  // namespace sluiceway::cuda

#define SLUICEWAY_CUDA_CHECK(call) ::sluiceway::cuda::check((call), #call, __FILE__, __LINE__)
