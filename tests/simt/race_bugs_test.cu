// Races that the SIMT machine must find, each beside the same kernel without the race.
#include "kernels/cuda/launch.cuh"
#include "tests/simt/planted.h"
#include "tests/support/device_array.h"

namespace sluiceway::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class SimtRaceTest : public SimtTest {
 protected:
  static constexpr unsigned kThreads = 96;
  DeviceArray<float> x{std::vector<float>(kThreads, 1.0F)};
  DeviceArray<float> y{std::vector<float>(kThreads, 0.0F)};
  DeviceArray<unsigned> count{std::vector<unsigned>{0}};
};

template <bool kRight>
__global__ void reverse(const float* x, float* y) {
  __shared__ float tile[96];
  tile[threadIdx.x] = x[threadIdx.x];
  if (kRight) __syncthreads();
  y[threadIdx.x] = tile[95 - threadIdx.x];
}

TEST_F(SimtRaceTest, MissingBarrierBeforeTheRead) {
  const auto matcher = AnyOf(HasSubstr("not written"), HasSubstr("was written by thread"));
  expect_found("reverse<false>", matcher, [&](StreamRef stream) {
    cuda::launch("reverse", cuda::Kernel<reverse<false>>(), {1, kThreads}, stream, x.data(),
                 y.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("reverse", cuda::Kernel<reverse<true>>(), {1, kThreads}, stream, x.data(),
                 y.data());
  });
}

template <bool kRight>
__global__ void rounds(const float* x, float* y) {
  __shared__ float tile[96];
  float sum = 0.0F;
  for (int round = 0; round < 3; ++round) {
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    sum += tile[95 - threadIdx.x];
    if (kRight) __syncthreads();
  }
  y[threadIdx.x] = sum;
}

TEST_F(SimtRaceTest, MissingBarrierBeforeTheTileIsUsedAgain) {
  const auto matcher = AnyOf(HasSubstr("was read by thread"), HasSubstr("was written by thread"));
  expect_found("rounds<false>", matcher, [&](StreamRef stream) {
    cuda::launch("rounds", cuda::Kernel<rounds<false>>(), {1, kThreads}, stream, x.data(),
                 y.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("rounds", cuda::Kernel<rounds<true>>(), {1, kThreads}, stream, x.data(), y.data());
  });
}

template <bool kRight>
__global__ void within_warps(const float* x, float* y) {
  __shared__ float tile[96];
  tile[threadIdx.x] = x[threadIdx.x];
  if (kRight) __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x ^ 1U];
  if (kRight) __syncwarp();
  tile[threadIdx.x] = 0.0F;
}

TEST_F(SimtRaceTest, LanesNeedSyncwarp) {
  expect_found("within_warps<false>", testing::_, [&](StreamRef stream) {
    cuda::launch("within_warps", cuda::Kernel<within_warps<false>>(), {1, kThreads}, stream,
                 x.data(), y.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("within_warps", cuda::Kernel<within_warps<true>>(), {1, kThreads}, stream,
                 x.data(), y.data());
  });
}

template <bool kRight>
__global__ void count_all(unsigned* count) {
  if (kRight) {
    atomicAdd(count, 1U);
  } else {
    *count += 1;
  }
}

TEST_F(SimtRaceTest, SumsWithoutAnAtomic) {
  const auto matcher = AnyOf(HasSubstr("it needs a barrier"), HasSubstr("blocks need"));
  expect_found("count_all<false>", matcher, [&](StreamRef stream) {
    cuda::launch("count_all", cuda::Kernel<count_all<false>>(), {3, 32}, stream, count.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("count_all", cuda::Kernel<count_all<true>>(), {3, 32}, stream, count.data());
  });
  EXPECT_EQ(count.values()[0] / 96, SimtTest::kSeeds);
}

template <bool kRight>
__global__ void last_block(float* parts, unsigned* tickets, float* sum) {
  parts[blockIdx.x] = 1.0F;
  if (kRight) __threadfence();
  if (atomicAdd(tickets, 1U) % gridDim.x != gridDim.x - 1) return;
  float total = 0.0F;
  for (unsigned b = 0; b < gridDim.x; ++b) total += parts[b];
  *sum = total;
}

TEST_F(SimtRaceTest, BlocksNeedAFenceBeforeTheirTicket) {
  DeviceArray<float> sum(1);
  expect_found("last_block<false>", HasSubstr("blocks need a __threadfence"),
               [&](StreamRef stream) {
                 const DeviceArray<unsigned> tickets(std::vector<unsigned>{0});
                 cuda::launch("last_block", cuda::Kernel<last_block<false>>(), {9, 1}, stream,
                              y.data(), count.data(), sum.data());
               });
  const DeviceArray<unsigned> tickets(std::vector<unsigned>{0});
  expect_nothing([&](StreamRef stream) {
    cuda::launch("last_block", cuda::Kernel<last_block<true>>(), {9, 1}, stream, y.data(),
                 tickets.data(), sum.data());
  });
  EXPECT_EQ(sum.values()[0], 9.0F);
}

__global__ void neighbours(float* y) { y[(threadIdx.x + blockIdx.x) % 96] = 1.0F; }

TEST_F(SimtRaceTest, BlocksThatWriteTheSameByte) {
  expect_found("neighbours", HasSubstr("was written by thread"), [&](StreamRef stream) {
    cuda::launch("neighbours", cuda::Kernel<neighbours>(), {2, 32}, stream, y.data());
  });
  expect_nothing([&](StreamRef stream) {
    cuda::launch("neighbours", cuda::Kernel<neighbours>(), {1, 32}, stream, y.data());
    cuda::launch("neighbours", cuda::Kernel<neighbours>(), {1, 32}, stream, y.data());
  });
}

__global__ void order_of_threads(unsigned* count, unsigned* places) {
  places[threadIdx.x] = atomicAdd(count, 1U);
}

TEST_F(SimtRaceTest, SeedChoosesTheOrderAndRepeatsIt) {
  const auto places_of = [&](std::uint64_t seed) {
    simt::set_seed(seed);
    const DeviceArray<unsigned> places(kThreads);
    const DeviceArray<unsigned> fresh(std::vector<unsigned>{0});
    run_on_stream(DeviceId::cuda(0), [&](StreamRef stream) {
      cuda::launch("order_of_threads", cuda::Kernel<order_of_threads>(), {1, kThreads}, stream,
                   fresh.data(), places.data());
    });
    return places.values();
  };
  const std::vector<unsigned> first = places_of(7);
  EXPECT_NE(first, places_of(8));
  EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
}

}  // namespace
}  // namespace sluiceway::test
