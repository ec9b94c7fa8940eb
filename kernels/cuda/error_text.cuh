// What an error of the CUDA runtime says, for every place that turns one into an exception.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "kernels/base/check.h"

namespace sluiceway::cuda {

// "cudaMalloc: cudaErrorMemoryAllocation (2): out of memory, expected cudaSuccess"
inline std::string error_text(cudaError_t result, const char* call) {
  return concat(call, ": ", cudaGetErrorName(result), " (", static_cast<int>(result),
                "): ", cudaGetErrorString(result), ", expected cudaSuccess");
}

}  // namespace sluiceway::cuda
