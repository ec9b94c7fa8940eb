#include <string>

#include "kernels/base/check.h"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda_backend.h"

namespace sluiceway::cuda {
namespace {

// Calls wait on a stream that no other thread uses, not on the whole device.
void wait_for_this_thread() { SLUICEWAY_CUDA_CHECK(cudaStreamSynchronize(cudaStreamPerThread)); }

[[noreturn]] void refuse(const char* what, int ordinal, std::size_t bytes, const char* memory) {
  cudaGetLastError();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  cudaMemGetInfo(&free_bytes, &total_bytes);
  throw OutOfMemory(concat(what, ": CUDA device ", ordinal, " refused ", format_bytes(bytes),
                           " of ", memory, " memory; the device has ", format_bytes(free_bytes),
                           " free of ", format_bytes(total_bytes), "; lower the budget"));
}

}  // namespace

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

int select_device(int ordinal) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw Unavailable(concat("device: CUDA device ", ordinal, " asked for, this machine has none: ",
                             cudaGetErrorString(result), "; use the host device"));
  }
  SLUICEWAY_CHECK(ordinal < count, "device: CUDA device ", ordinal, ", expected 0 to ", count - 1);
  int previous = 0;
  SLUICEWAY_CUDA_CHECK(cudaGetDevice(&previous));
  if (previous != ordinal) SLUICEWAY_CUDA_CHECK(cudaSetDevice(ordinal));
  return previous;
}

void restore_device(int ordinal) noexcept {
  cudaSetDevice(ordinal);  // It was current before: there is nothing to do about a failure.
}

void* allocate_bytes(int ordinal, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  void* pointer = nullptr;
  const cudaError_t result = cudaMalloc(&pointer, bytes);
  if (result == cudaErrorMemoryAllocation) refuse("cudaMalloc", ordinal, bytes, "device");
  SLUICEWAY_CUDA_CHECK(result);
  return pointer;
}

void free_bytes(int, void* pointer) noexcept { cudaFree(pointer); }

void lock_pages(int ordinal, void* pages, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  const cudaError_t result = cudaHostRegister(pages, bytes, cudaHostRegisterPortable);
  if (result == cudaErrorMemoryAllocation) {
    refuse("cudaHostRegister", ordinal, bytes, "page-locked host");
  }
  SLUICEWAY_CUDA_CHECK(result);
}

void unlock_pages(void* pages) noexcept { cudaHostUnregister(pages); }

void fill_bytes(int ordinal, void* pointer, int value, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  SLUICEWAY_CUDA_CHECK(cudaMemsetAsync(pointer, value, bytes, cudaStreamPerThread));
  wait_for_this_thread();
}

void copy_bytes(int ordinal, void* dst, const void* src, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  SLUICEWAY_CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cudaStreamPerThread));
  wait_for_this_thread();
}

void copy_bytes_async(StreamRef stream, void* dst, const void* src, std::size_t bytes,
                      LinkDirection direction) {
  const cudaMemcpyKind kind =
      direction == LinkDirection::kDeviceToHost ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  SLUICEWAY_CUDA_CHECK(
      cudaMemcpyAsync(dst, src, bytes, kind, static_cast<cudaStream_t>(stream.native())));
}

}  // namespace sluiceway::cuda
