// Formats an error of the CUDA runtime, for every place that throws one as an exception.
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
