#include "runtime/device/cuda/cuda_check.h"

#include "kernels/base/check.h"
#include "kernels/cuda/error_text.cuh"

namespace sluiceway::cuda {

void check(cudaError_t result, const char* call, const char* file, int line) {
  if (result == cudaSuccess) [[likely]] {
    return;
  }
  drop(result);
  throw CudaError(concat(error_text(result, call), "; ", file, ":", line));
}

void drop(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

std::exception_ptr error_of(cudaError_t result, const char* call) noexcept {
  if (result == cudaSuccess) return nullptr;
  drop(result);
  try {
    return std::make_exception_ptr(CudaError(error_text(result, call)));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace sluiceway::cuda
