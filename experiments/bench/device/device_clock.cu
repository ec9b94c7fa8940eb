#include <cuda_runtime.h>

#include <exception>

#include "experiments/bench/device/device_clock.h"
#include "kernels/cuda/launch.cuh"
#include "runtime/device/stream.h"
#include "tests/support/device_array.h"

namespace sluiceway::bench {
namespace {

constexpr DeviceSizes kOfACard{4096, 2048, std::int64_t{32} << 20, std::int64_t{64} << 20, 4096,
                               4096, 100};
constexpr DeviceSizes kTiny{64, 67, 5003, 4096, 2, 3, 1};

DeviceSizes& chosen() {
  static DeviceSizes sizes = kOfACard;
  return sizes;
}

__global__ void sweep(float4* a, std::int64_t fours) {
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < fours;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const float4 zeros{0.0F, 0.0F, 0.0F, 0.0F};
    a[i] = zeros;
  }
}

// Never destroyed: the driver may be gone when a program's static objects are.
struct Bench {
  Stream stream = Stream::owned(DeviceId::cuda(0), {"sw-bench"});
  test::DeviceArray<float> swept{static_cast<std::size_t>(device_sizes().swept_elems)};
};

Bench& bench() {
  static auto* const one = new Bench;
  return *one;
}

double seconds(const DeviceWork& work) {
  Completion completion;
  bench().stream.enqueue(work, [&](const Completion& done) { completion = done; });
  bench().stream.synchronize();
  if (completion.error != nullptr) std::rethrow_exception(completion.error);
  return (completion.end_us - completion.begin_us) * 1e-6;
}

}  // namespace

const DeviceSizes& device_sizes() { return chosen(); }
void choose_tiny_sizes() { chosen() = kTiny; }

double device_seconds(const DeviceWork& work) {
  bench().stream.enqueue([](StreamRef stream) {
    const cuda::Shape shape{device_sizes().blocks, 256};
    auto* const fours = reinterpret_cast<float4*>(bench().swept.data());
    cuda::launch("sweep", cuda::Kernel<sweep>(), shape, stream, fours,
                 device_sizes().swept_elems / 4);
  });
  return seconds(work);
}

void run_on_device_0(const DeviceWork& work) { seconds(work); }

}  // namespace sluiceway::bench
