#include <atomic>
#include <string>

#include "kernels/base/check.h"
#include "kernels/cuda/error_text.cuh"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_event.h"
#include "runtime/device/cuda_backend.h"

namespace sluiceway::cuda {
namespace {

// Calls wait on a stream that no other thread uses, not on the whole device.
const cudaStream_t kOwnStream = cudaStreamPerThread;

[[noreturn]] void refuse(int ordinal, std::size_t bytes) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  drop(cudaMemGetInfo(&free_bytes, &total_bytes));
  throw OutOfMemory(concat("cudaMalloc: CUDA device ", ordinal, " cannot allocate ",
                           format_bytes(bytes), " of device memory; the device has ",
                           format_bytes(free_bytes), " free of ", format_bytes(total_bytes),
                           "; lower the budget"));
}

// True if the system has a limit, no memory left, or cannot lock pages at all: not an error of the
// call.
bool system_refuses(cudaError_t result) noexcept {
  return result == cudaErrorMemoryAllocation || result == cudaErrorOperatingSystem ||
         result == cudaErrorNotPermitted || result == cudaErrorNotSupported;
}

}  // namespace

// Every launch asks for this, so the driver's first answer is kept: it stays the same while the
// process lives.
int device_count() noexcept {
  static std::atomic<int> known{0};
  int count = known;
  if (count > 0) return count;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  known = count;
  return count;
}

int select_device(int ordinal) {
  int count = device_count();
  if (count == 0) {
    const cudaError_t result = cudaGetDeviceCount(&count);
    cudaGetLastError();
    throw Unavailable(concat("device: CUDA device ", ordinal,
                             " was requested, but this machine has none: ",
                             cudaGetErrorString(result), "; use the host device"));
  }
  SLUICEWAY_CHECK(ordinal < count, "device: CUDA device ", ordinal, ", expected 0 to ", count - 1);
  int previous = 0;
  SLUICEWAY_CUDA_CHECK(cudaGetDevice(&previous));
  if (previous != ordinal) SLUICEWAY_CUDA_CHECK(cudaSetDevice(ordinal));
  return previous;
}

void restore_device(int ordinal) noexcept {
  drop(cudaSetDevice(ordinal));  // It was current before.
}

void* allocate_bytes(int ordinal, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  void* pointer = nullptr;
  const cudaError_t result = cudaMalloc(&pointer, bytes);
  if (result == cudaErrorMemoryAllocation) {
    drop(result);
    refuse(ordinal, bytes);
  }
  check(result, "cudaMalloc", __FILE__, __LINE__);
  return pointer;
}

void free_bytes(int ordinal, void* pointer) noexcept {
  try {
    // Without it the call would make a context on another device.
    const DeviceGuard guard(DeviceId::cuda(ordinal));
    drop(cudaFree(pointer));
  } catch (...) {  // The driver is gone, and the memory with it.
  }
}

std::string lock_pages(int ordinal, void* pages, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  const cudaError_t result = cudaHostRegister(pages, bytes, cudaHostRegisterPortable);
  if (!system_refuses(result)) {
    check(result, "cudaHostRegister", __FILE__, __LINE__);
    return {};
  }
  drop(result);
  return error_text(result, "cudaHostRegister");
}

void unlock_pages(void* pages) noexcept { drop(cudaHostUnregister(pages)); }

void fill_bytes(int ordinal, void* pointer, int value, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  SLUICEWAY_CUDA_CHECK(cudaMemsetAsync(pointer, value, bytes, kOwnStream));
  sleep_until_idle(kOwnStream);
}

void copy_bytes(int ordinal, void* dst, const void* src, std::size_t bytes) {
  const DeviceGuard guard(DeviceId::cuda(ordinal));
  SLUICEWAY_CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, kOwnStream));
  sleep_until_idle(kOwnStream);
}

void copy_bytes_async(StreamRef stream, void* dst, const void* src, std::size_t bytes,
                      LinkDirection direction) {
  if (bytes == 0) return;
  const cudaMemcpyKind kind =
      direction == LinkDirection::kDeviceToHost ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
  SLUICEWAY_CUDA_CHECK(
      cudaMemcpyAsync(dst, src, bytes, kind, static_cast<cudaStream_t>(stream.native())));
}

}  // namespace sluiceway::cuda
