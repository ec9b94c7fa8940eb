// The one way in which kernels are launched.
//
//   launch("scale_rows", Kernel<scale_rows<float>>(), {.grid = rows, .block = 256}, stream, w, 2);
//
// Arguments are converted to the kernel's parameters and travel by value, so they are plain.
//
// A program that names a kernel here has it on the list of load_kernels() before main() starts, so
// a kernel that is launched cannot be missing there.
//
// Errors: CudaError that names the kernel, when the launch is refused or the device has failed
//         before. What the kernel itself does wrong shows at the next call that waits for it.
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
  std::size_t shared_bytes = 0;  // Of dynamic_shared(), at most 48 KiB with what is static.
};

inline void check_launch(cudaError_t result, const char* kernel) {
  if (result == cudaSuccess) [[likely]] {
    return;
  }
  cudaGetLastError();  // Or the next launch would report this one again.
  throw CudaError(error_text(result, kernel));
}

// The calling thread's device for one launch, and the one before again.
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

// One entry of the list of load_kernels(). Made before main() starts, in any order.
class ListedKernel {
 public:
  // `signature` is __PRETTY_FUNCTION__ of a template of the kernel; it ends with the kernel's name.
  ListedKernel(const void* function, std::string_view signature);
};

template <auto kFunction>
const char* signature_of_kernel() {
  return __PRETTY_FUNCTION__;
}

// Static, since each object file has a copy of its own of a kernel that several launch.
template <auto kFunction>
static const ListedKernel kListedKernel{reinterpret_cast<const void*>(kFunction),
                                        signature_of_kernel<kFunction>()};

// The kernel of a launch.
template <auto kFunction>
class Kernel;

template <typename... Params, void (*kFunction)(Params...)>
class Kernel<kFunction> {
  static_assert((std::is_trivially_copyable_v<Params> && ...), "parameters are copied as bytes");

 public:
  template <typename... Args>
  static cudaError_t enqueue(const cudaLaunchConfig_t& config, Args&&... args) {
    static_assert(sizeof...(Params) == sizeof...(Args), "a kernel has no default arguments");
    static_cast<void>(&kListedKernel<kFunction>);  // Or the compiler would leave it out.
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
