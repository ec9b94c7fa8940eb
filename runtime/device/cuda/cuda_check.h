// SLUICEWAY_CUDA_CHECK: throws CudaError, with call, place and the runtime's words, unless the call
// of the CUDA runtime succeeded.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>

namespace sluiceway::cuda {

void check(cudaError_t result, const char* call, const char* file, int line);

// Of a call about whose failure nothing can be done, such as one that frees: whoever asks the
// runtime for its last error next shall not be told of it.
void drop(cudaError_t result) noexcept;

// The same error as a value, for threads that must not throw; null for success.
std::exception_ptr error_of(cudaError_t result, const char* call) noexcept;

}  // namespace sluiceway::cuda

#define SLUICEWAY_CUDA_CHECK(call) ::sluiceway::cuda::check((call), #call, __FILE__, __LINE__)
