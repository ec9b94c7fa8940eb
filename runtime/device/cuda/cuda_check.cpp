#include "runtime/device/cuda/cuda_check.h"

#include "kernels/base/check.h"

namespace sluiceway::cuda {
namespace {

std::string describe(cudaError_t result, const char* call) {
  return concat(call, ": ", cudaGetErrorName(result), " (", static_cast<int>(result),
                "): ", cudaGetErrorString(result), ", expected cudaSuccess");
}

}  // namespace

void check(cudaError_t result, const char* call, const char* file, int line) {
  if (result == cudaSuccess) [[likely]] {
    return;
  }
  cudaGetLastError();  // Or the next launch check would report this one again.
  throw CudaError(concat(describe(result, call), "; ", file, ":", line));
}

std::exception_ptr error_of(cudaError_t result, const char* call) noexcept {
  if (result == cudaSuccess) return nullptr;
  cudaGetLastError();
  try {
    return std::make_exception_ptr(CudaError(describe(result, call)));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace sluiceway::cuda
