// The dynamic shared memory of the block, whose size the launch sets (launch.cuh).
#pragma once

#include <cuda_runtime.h>

namespace sluiceway::cuda {

extern __shared__ uint4 dynamic_shared_memory[];  // Elements of 16 bytes, aligned to 16.

template <typename T>
__device__ T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace sluiceway::cuda
