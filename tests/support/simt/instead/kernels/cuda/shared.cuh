// kernels/cuda/shared.cuh of this machine, which is found before that one.
#pragma once

#include <cuda_runtime.h>

namespace sluiceway::cuda {

template <typename T>
__device__ T* dynamic_shared() {
  return reinterpret_cast<T*>(simt::dynamic_shared_memory());
}

}  // namespace sluiceway::cuda
