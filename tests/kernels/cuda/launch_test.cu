// launch() and dynamic_shared() on CUDA device 0. A machine without one fails here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/base/view.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/load_kernels.h"
#include "kernels/cuda/shared.cuh"
#include "tests/support/backend.h"
#include "tests/support/device_array.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr unsigned kThreads = 64;

// Each block sums its part: by halves in dynamic shared memory, then within the first warp.
__global__ void block_sums(const float* x, std::int64_t elems, float* sums) {
  auto* const parts = cuda::dynamic_shared<float>();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  parts[threadIdx.x] = i < elems ? x[i] : 0.0F;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float sum = parts[threadIdx.x] + parts[threadIdx.x + 32];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <typename T>
__global__ void scale_rows(MatrixView<T> w, float factor, std::int64_t add) {
  for (std::int64_t j = threadIdx.x; j < w.cols; j += blockDim.x) {
    T& element = w.data[blockIdx.x * w.stride + j];
    element = static_cast<T>(static_cast<float>(element) * factor + static_cast<float>(add));
  }
}

// The last block to arrive adds the parts of the others.
__global__ void grid_sum(const float* x, float* parts, unsigned* tickets, float* sum) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = x[blockIdx.x];
    __threadfence();
    last = atomicAdd(tickets, 1U) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  float total = 0.0F;
  for (unsigned b = 0; b < gridDim.x; ++b) total += parts[b];
  *sum = total;
}

TEST(LaunchTest, SharedMemoryShufflesAndBarriersGiveTheSumsOfBlocks) {
  std::vector<float> x(kThreads * 3 + 5);
  std::iota(x.begin(), x.end(), 1.0F);
  const DeviceArray<float> input(x);
  const DeviceArray<float> sums(4);
  run_on_stream(DeviceId::cuda(0), [&](StreamRef stream) {
    cuda::launch("block_sums", cuda::Kernel<block_sums>(), {4, kThreads, kThreads * sizeof(float)},
                 stream, input.data(), static_cast<std::int64_t>(x.size()), sums.data());
  });
  EXPECT_THAT(sums.values(), ElementsAre(2080, 6176, 10272, 193 + 194 + 195 + 196 + 197));
}

TEST(LaunchTest, ArgumentsBecomeTheKernelsParameters) {
  const DeviceArray<float> w(std::vector<float>{1, 2, 3, 4, 5, 6});
  run_on_stream(DeviceId::cuda(0), [&](StreamRef stream) {
    cuda::launch("scale_rows", cuda::Kernel<scale_rows<float>>(), {2, 32}, stream,
                 MatrixView<float>(w.data(), 2, 2, 3), 2, 10);  // Converts int to float and int64.
  });
  EXPECT_THAT(w.values(), ElementsAre(12, 14, 3, 18, 20, 6));
}

TEST(LaunchTest, LastBlockSeesWhatTheOthersWroteBeforeTheirFence) {
  const DeviceArray<float> x(std::vector<float>(37, 0.5F));
  const DeviceArray<float> parts(37);
  const DeviceArray<unsigned> tickets(std::vector<unsigned>{0});
  const DeviceArray<float> sum(1);
  run_on_stream(DeviceId::cuda(0), [&](StreamRef stream) {
    cuda::launch("grid_sum", cuda::Kernel<grid_sum>(), {37, 32}, stream, x.data(), parts.data(),
                 tickets.data(), sum.data());
  });
  EXPECT_THAT(sum.values(), ElementsAre(18.5F));
}

TEST(LaunchTest, KernelsAreLoadedOnceADevice) {
  cuda::load_kernels(DeviceId::cuda(0));
  EXPECT_EQ(cuda::load_kernels(DeviceId::cuda(0)), 0U);
  EXPECT_EQ(cuda::load_kernels(DeviceId::host()), 0U);
}

TEST(LaunchTest, EmptyGridLaunchesNothing) {
  const DeviceArray<float> w(std::vector<float>{7});
  run_on_stream(DeviceId::cuda(0), [&](StreamRef stream) {
    cuda::launch("scale_rows", cuda::Kernel<scale_rows<float>>(), {0, 32}, stream,
                 MatrixView<float>(w.data(), 0, 1), 2, 0);
  });
  EXPECT_THAT(w.values(), Each(7));
}

TEST(LaunchTest, RefusedLaunchNamesTheKernel) {
  EXPECT_THAT(
      [] {
        run_on_stream(DeviceId::cuda(0), [](StreamRef stream) {
          cuda::launch("scale_rows", cuda::Kernel<scale_rows<float>>(), {1, 4096}, stream,
                       MatrixView<float>(), 2, 0);
        });
      },
      ThrowsMessage<CudaError>(AllOf(HasSubstr("scale_rows"), HasSubstr("expected cudaSuccess"))));
}

}  // namespace
}  // namespace sluiceway::test
