// The one way in which kernels are launched.
//
//   launch("scale_rows", scale_rows<float>, {.grid = rows, .block = 256}, stream, w, factor);
//
// Arguments are converted to the kernel's parameters and travel by value, so they are plain.
//
// Errors: CudaError that names the kernel, when the launch is refused or the device has failed
//         before. What the kernel itself does wrong shows at the next call that waits for it.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
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

// Enqueues kernel(args...) on `stream`; an empty grid launches nothing.
template <typename... Params, typename... Args>
void launch(const char* name, void (*kernel)(Params...), const Shape& shape, StreamRef stream,
            Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel has no default arguments");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "parameters are copied as bytes");
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const LaunchDevice device(name, stream.device().ordinal());
  const cudaLaunchConfig_t config{shape.grid,
                                  shape.block,
                                  shape.shared_bytes,
                                  static_cast<cudaStream_t>(stream.native()),
                                  nullptr,
                                  0};
  check_launch(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

}  // namespace sluiceway::cuda
