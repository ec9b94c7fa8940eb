// All kernels are launched through launch():
//
//   launch("scale_rows", Kernel<scale_rows<float>>(), {.grid = rows, .block = 256}, stream, w, 2);
//
// Arguments are converted to the kernel's parameters and travel by value, so they are plain types.
//
// Every kernel that a program names here is on the list of load_kernels() before main() starts, so
// a launched kernel cannot be missing from it.
//
// Errors: CudaError that names the kernel, if the launch fails or the device has failed before. An
//         error inside the kernel shows at the next call that waits for it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <string_view>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"
#include "kernels/base/stream_ref.h"
#include "kernels/cuda/error_text.cuh"

namespace sluiceway::cuda {

struct Shape {
  dim3 grid;
  dim3 block;
  // Bytes of dynamic_shared(); with static shared memory at most 48 KiB.
  std::size_t shared_bytes = 0;
};

inline void check_launch(cudaError_t result, const char* kernel) {
  if (result == cudaSuccess) [[likely]] {
    return;
  }
  cudaGetLastError();  // Clears the error, or the next launch would report it again.
  throw CudaError(error_text(result, kernel));
}

// Makes the stream's device current for one launch, then restores the calling thread's device.
class LaunchDevice {
 public:
  LaunchDevice(const char* kernel, int ordinal) : ordinal_(ordinal) {
    check_launch(cudaGetDevice(&previous_), kernel);
    if (previous_ != ordinal_) check_launch(cudaSetDevice(ordinal_), kernel);
  }
  LaunchDevice(const LaunchDevice&) = delete;
  LaunchDevice& operator=(const LaunchDevice&) = delete;
  ~LaunchDevice() {
    if (previous_ != ordinal_ && cudaSetDevice(previous_) != cudaSuccess) cudaGetLastError();
  }

 private:
  int ordinal_;
  int previous_ = 0;
};

// An entry in the list of load_kernels(). Entries are made before main() starts, in any order.
class ListedKernel {
 public:
  // `signature` is __PRETTY_FUNCTION__ of a template of the kernel; it ends with the kernel's name.
  ListedKernel(const void* function, std::string_view signature);
};

template <auto kFunction>
const char* signature_of_kernel() {
  return __PRETTY_FUNCTION__;
}

// Static, since each object file that launches a kernel has its own copy of it.
template <auto kFunction>
static const ListedKernel kListedKernel{reinterpret_cast<const void*>(kFunction),
                                        signature_of_kernel<kFunction>()};

// Names the kernel to launch.
template <auto kFunction>
class Kernel;

template <typename... Params, void (*kFunction)(Params...)>
class Kernel<kFunction> {
  static_assert((std::is_trivially_copyable_v<Params> && ...), "parameters are copied as bytes");

 public:
  template <typename... Args>
  static cudaError_t enqueue(const cudaLaunchConfig_t& config, Args&&... args) {
    static_assert(sizeof...(Params) == sizeof...(Args), "a kernel has no default arguments");
    static_cast<void>(&kListedKernel<kFunction>);  // Keeps the compiler from dropping the entry.
    return cudaLaunchKernelEx(&config, kFunction, std::forward<Args>(args)...);
  }
};

// Enqueues the kernel on `stream`; an empty grid launches nothing.
template <auto kFunction, typename... Args>
void launch(const char* name, Kernel<kFunction> kernel, const Shape& shape, StreamRef stream,
            Args&&... args) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const LaunchDevice device(name, stream.device().ordinal());
  const cudaLaunchConfig_t config{shape.grid,
                                  shape.block,
                                  shape.shared_bytes,
                                  static_cast<cudaStream_t>(stream.native()),
                                  nullptr,
                                  0};
  check_launch(kernel.enqueue(config, std::forward<Args>(args)...), name);
}

}  // namespace sluiceway::cuda
