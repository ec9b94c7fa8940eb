// The language of kernels for the host compiler, as far as our kernels use it.
#pragma once

#include <cuda_runtime_api.h>
#include <simt_device.h>

#include <tuple>
#include <utility>

#define __global__
// Inlined, since the compiler would not report the store of a structure that a call returns
// (vector_types.h).
#define __device__ __attribute__((always_inline))
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// A worker runs its blocks one after another, so thread-local storage of the host belongs to a
// block.
#define __shared__ static thread_local __attribute__((aligned(::sluiceway::simt::kSharedAlignment)))

#define threadIdx (::sluiceway::simt::thread_index())
#define blockIdx (::sluiceway::simt::block_index())
#define blockDim (::sluiceway::simt::block_shape())
#define gridDim (::sluiceway::simt::grid_shape())
inline constexpr int warpSize = 32;

#include <simt_atomics.h>
#include <simt_math.h>
#include <simt_warp.h>

namespace sluiceway::simt {

template <typename... Params>
struct Call {
  void (*kernel)(Params...);
  std::tuple<Params...> params;

  static void run(const void* call) {
    const auto& self = *static_cast<const Call*>(call);
    std::apply(self.kernel, self.params);
  }
};

}  // namespace sluiceway::simt

template <typename... Params, typename... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...),
                               Args&&... args) {
  using Call = sluiceway::simt::Call<Params...>;
  auto call = std::make_shared<const Call>(
      Call{kernel, std::tuple<Params...>(static_cast<Params>(std::forward<Args>(args))...)});
  return sluiceway::simt::enqueue_kernel(
      *config, {reinterpret_cast<const void*>(kernel), &Call::run, std::move(call), sizeof(Call)});
}

template <typename... Params>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Params...)) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
