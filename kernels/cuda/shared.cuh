// The block's dynamic shared memory, whose size a launch says (launch.cuh).
#pragma once

#include <cuda_runtime.h>

namespace sluiceway::cuda {

extern __shared__ uint4 dynamic_shared_memory[];  // Of 16 bytes, and aligned to as many.

template <typename T>
__device__ T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

}  // namespace sluiceway::cuda
