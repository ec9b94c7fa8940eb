// The rest of the CUDA runtime: errors, devices, memory, copies, launches.
#include <simt_device.h>

#include <cstdlib>
#include <memory>
#include <utility>

#include "kernels/base/check.h"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/calls.h"
#include "tests/support/simt/copies.h"
#include "tests/support/simt/current_device.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/grid.h"
#include "tests/support/simt/host_ranges.h"
#include "tests/support/simt/loading.h"
#include "tests/support/simt/simt.h"
#include "tests/support/simt/streams.h"
#include "tests/support/simt/symbols.h"

namespace sluiceway::simt {

cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, Kernel kernel) {
  if (device_error() != cudaSuccess) return device_error();
  const dim3 block = config.blockDim;
  const std::size_t threads = std::size_t{block.x} * block.y * block.z;
  const dim3 grid = config.gridDim;
  const bool fits = threads >= 1 && threads <= Workshop::kThreads && block.z <= 64 && grid.x >= 1 &&
                    grid.y >= 1 && grid.z >= 1 && grid.x < (1U << 31) && grid.y <= 65535 &&
                    grid.z <= 65535;
  if (!fits || config.dynamicSmemBytes > Workshop::kSharedBytes) {
    return note(cudaErrorInvalidConfiguration);
  }
  const cudaError_t refusal = refused("cudaLaunchKernelEx");
  if (refusal != cudaSuccess) return note(refusal);
  Worker& worker = worker_of(config.stream);
  auto launch = std::make_shared<Launch>(
      Launch{std::move(kernel), config.gridDim, block, config.dynamicSmemBytes, worker.device()});
  const std::string name = concat("kernel ", function_name(launch->kernel.address));
  const cudaError_t wrong = expect_current(name.c_str(), "a stream", worker.device());
  if (wrong != cudaSuccess) return note(wrong);
  const LaunchTurn turn(worker.device(), launch->kernel.address);
  if (device_error() != cudaSuccess) return device_error();
  worker.enqueue(name, [launch](Running& running, Workshop& workshop) {
    Grid(*launch, running, workshop).run();
  });
  return cudaSuccess;
}

std::vector<std::string> take_findings() {
  Worker::wait_until_all_are_idle();
  return clear_findings();
}

}  // namespace sluiceway::simt

namespace simt = sluiceway::simt;

namespace {

simt::Arena& current_arena() { return simt::Arena::of(simt::current_device()); }

// Returns the result for a call that gives `stream` work; an error if it may not.
cudaError_t ready(const char* call, cudaStream_t stream) {
  if (simt::device_error() != cudaSuccess) return simt::device_error();
  return simt::expect_current(call, "a stream", simt::worker_of(stream).device());
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorOperatingSystem:
      return "cudaErrorOperatingSystem";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
    case cudaErrorMisalignedAddress:
      return "cudaErrorMisalignedAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotPermitted:
      return "cudaErrorNotPermitted";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const bool failed = error == cudaErrorIllegalAddress || error == cudaErrorMisalignedAddress ||
                      error == cudaErrorLaunchFailure ||
                      (error != cudaSuccess && error == simt::device_error());
  return failed ? simt::device_error_text() : "see its name";
}

// A failed device reports its failure forever, whoever has asked before.
cudaError_t cudaGetLastError() {
  const cudaError_t last = simt::take_last_error();
  return simt::device_error() == cudaSuccess ? last : simt::device_error();
}

cudaError_t cudaGetDeviceCount(int* count) {
  return simt::call(__func__, [&] {
    *count = simt::Arena::kDevices;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return simt::call(__func__, [&] {
    *device = simt::current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return simt::call(__func__, [&] {
    return simt::set_current_device(device) ? simt::device_error() : cudaErrorInvalidDevice;
  });
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return simt::call_when_idle(__func__, [&] {
    if (simt::device_error() != cudaSuccess) return simt::device_error();
    *pointer = current_arena().allocate(bytes);
    return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
  });
}

// The memory is gone at once, and only then does the call wait: code must not rely on an earlier
// wait.
cudaError_t cudaFree(void* pointer) {
  return simt::call_locked(__func__, [&](const simt::DriverTurn& turn) {
    if (pointer == nullptr) return cudaSuccess;
    simt::Arena* const arena = simt::Arena::holding(pointer);
    if (arena == nullptr) return cudaErrorInvalidValue;
    const cudaError_t wrong = simt::expect_current("cudaFree", "memory", arena->device());
    if (wrong != cudaSuccess) return wrong;
    if (!arena->release(pointer)) return cudaErrorInvalidValue;
    turn.wait_until_idle();
    return simt::device_error();
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return simt::call_locked(__func__, [&] {
    *free_bytes = current_arena().free_bytes();
    *total_bytes = simt::Arena::kBytes;
    return cudaSuccess;
  });
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  return simt::call_when_idle(__func__, [&] {
    return simt::register_pages(pointer, bytes) ? cudaSuccess
                                                : cudaErrorHostMemoryAlreadyRegistered;
  });
}

// As with cudaFree, this finds code that relies on the wait.
cudaError_t cudaHostUnregister(void* pointer) {
  return simt::call_locked(__func__, [&](const simt::DriverTurn& turn) {
    if (simt::in_use(pointer)) {
      simt::report(cudaErrorLaunchFailure,
                   sluiceway::concat("simt: cudaHostUnregister of ", pointer,
                                     ": a copy of it is not done; wait for an event after the "
                                     "copy first"));
    }
    turn.wait_until_idle();
    return simt::unregister_pages(pointer) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
  });
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return simt::call_when_idle(__func__, [&] {
    *pointer = std::malloc(bytes);
    const bool registered = *pointer != nullptr && simt::register_pages(*pointer, bytes);
    return registered ? cudaSuccess : cudaErrorMemoryAllocation;
  });
}

cudaError_t cudaMemcpyAsync(void* dst, const void* src, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return simt::call(__func__, [&] {
    const cudaError_t wrong = ready("cudaMemcpyAsync", stream);
    if (wrong != cudaSuccess) return wrong;
    return simt::enqueue_copy(simt::worker_of(stream), dst, src, bytes, kind);
  });
}

cudaError_t cudaMemsetAsync(void* dst, int value, std::size_t bytes, cudaStream_t stream) {
  return simt::call_locked(__func__, [&] {
    const cudaError_t wrong = ready("cudaMemsetAsync", stream);
    if (wrong != cudaSuccess) return wrong;
    return simt::enqueue_fill(simt::worker_of(stream), dst, value, bytes);
  });
}

}  // extern "C"
