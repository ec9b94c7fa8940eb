// This machine's version of kernels/cuda/shared.cuh, which include paths find first.
#pragma once

#include <cuda_runtime.h>

namespace sluiceway::cuda {

template <typename T>
__device__ T* dynamic_shared() {
  return reinterpret_cast<T*>(simt::dynamic_shared_memory());
}

}  // namespace sluiceway::cuda
