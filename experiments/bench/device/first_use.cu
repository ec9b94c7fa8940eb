#include <cuda_runtime.h>

#include <chrono>
#include <functional>

#include "experiments/bench/device/first_use.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.h"
#include "kernels/cuda/prepare_stream.h"
#include "kernels/cuda/sparse_product.h"
#include "runtime/device/stream.h"

namespace sluiceway::bench {
namespace {

const DeviceId kDevice = DeviceId::cuda(0);

double free_bytes() {
  const cuda::LaunchDevice current("cudaMemGetInfo", kDevice.ordinal());
  std::size_t free = 0, total = 0;
  cuda::check_launch(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<double>(free);
}

FirstUse measure(const char* name, const std::function<std::size_t()>& make) {
  const double before = free_bytes();
  const auto begin = std::chrono::steady_clock::now();
  const std::size_t kernels = make();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return {name, taken.count(), before - free_bytes(), kernels};
}

}  // namespace

std::vector<FirstUse> measure_first_use() {
  free_bytes();  // Makes the context.
  std::vector<FirstUse> out{measure("load_kernels", [] { return cuda::load_kernels(kDevice); })};
  Stream stream = Stream::owned(kDevice, {"sw-first-use"});
  out.push_back(measure("prepare_stream", [&] {
    stream.enqueue(cuda::prepare_stream);
    stream.synchronize();
    return std::size_t{0};
  }));
  out.push_back(measure("prepare_gemm", [] {
    cuda::prepare_gemm(kDevice);
    return std::size_t{0};
  }));
  out.push_back(measure("prepare_sparse_product", [] {
    cuda::prepare_sparse_product(kDevice);
    return std::size_t{0};
  }));
  return out;
}

}  // namespace sluiceway::bench
