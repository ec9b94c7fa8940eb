// As much of the CUDA driver's interface as our sources call.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum CUstreamWaitValue_flags { CU_STREAM_WAIT_VALUE_EQ = 1 };
using CUstream = cudaStream_t;
using CUdeviceptr = unsigned long long;
