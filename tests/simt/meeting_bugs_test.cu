// Errors at barriers and in warps that the SIMT machine must report, each beside a correct kernel.
#include "kernels/cuda/launch.cuh"
#include "tests/simt/planted.h"
#include "tests/support/device_array.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr unsigned kFull = 0xFFFFFFFFU;

class SimtMeetingTest : public SimtTest {
 protected:
  DeviceArray<int> y{std::vector<int>(64, 0)};

  template <typename Kernel>
  std::function<void(StreamRef)> on_warps(Kernel kernel, unsigned threads) {
    return [this, kernel, threads](StreamRef stream) {
      cuda::launch("kernel", kernel, {2, threads}, stream, y.data());
    };
  }
};

__global__ void some_leave(int*) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
}

__global__ void two_barriers(int*) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_F(SimtMeetingTest, BarrierThatNotAllThreadsReach) {
  const auto matcher = AllOf(HasSubstr("waits at the __syncthreads at meeting_bugs_test.cu:"),
                             HasSubstr("has left the kernel"));
  expect_found("some_leave", matcher, on_warps(cuda::Kernel<some_leave>(), 64));
  expect_nothing(on_warps(cuda::Kernel<some_leave>(), 32));
}

TEST_F(SimtMeetingTest, BarriersOfTwoBranches) {
  expect_found("two_barriers", HasSubstr("is at the __syncthreads at"),
               on_warps(cuda::Kernel<two_barriers>(), 64));
  expect_nothing(on_warps(cuda::Kernel<two_barriers>(), 32));
}

template <bool kRight>
__global__ void shuffle_in_branch(int* y) {
  const int value = static_cast<int>(threadIdx.x);
  if (kRight || threadIdx.x % 32 < 20) {
    const int other = __shfl_xor_sync(kFull, value, 16);
    if (blockIdx.x == 0) y[threadIdx.x] = other;
  }
}

TEST_F(SimtMeetingTest, ShuffleFromALaneThatIsNotThere) {
  expect_found("shuffle_in_branch<false>", HasSubstr("has left the kernel"),
               on_warps(cuda::Kernel<shuffle_in_branch<false>>(), 64));
  expect_nothing(on_warps(cuda::Kernel<shuffle_in_branch<true>>(), 64));
  EXPECT_EQ(y.values()[5], 21);
  EXPECT_EQ(y.values()[50], 34);
}

__global__ void shuffle_outside_mask(int* y) {
  if (threadIdx.x >= 8) return;
  const int value = __shfl_sync(0xFFU, static_cast<int>(threadIdx.x), 9);
  if (blockIdx.x == 0) y[threadIdx.x] = value;
}

TEST_F(SimtMeetingTest, ShuffleFromALaneOutsideOfTheMask) {
  expect_found("shuffle_outside_mask", HasSubstr("leaves out lane 9, from which it reads"),
               on_warps(cuda::Kernel<shuffle_outside_mask>(), 32));
}

__global__ void vote(int* y) {
  const unsigned odd = __ballot_sync(kFull, static_cast<int>(threadIdx.x % 2));
  const int any = __any_sync(kFull, threadIdx.x == 3 ? 1 : 0);
  const int all = __all_sync(kFull, threadIdx.x == 3 ? 1 : 0);
  if (blockIdx.x == 0) y[threadIdx.x] = odd == 0xAAAAAAAAU && any == 1 && all == 0 ? 1 : 0;
}

TEST_F(SimtMeetingTest, WarpThatIsNotWhole) {
  expect_found("vote", HasSubstr("its warp has 8 lanes"), on_warps(cuda::Kernel<vote>(), 40));
  expect_nothing(on_warps(cuda::Kernel<vote>(), 32));
  EXPECT_EQ(y.values()[7], 1);
}

__global__ void vote_or_barrier(int* y) {
  if (threadIdx.x == 0) __syncthreads();
  if (threadIdx.x != 0) *y = static_cast<int>(__ballot_sync(kFull, 1));
}

TEST_F(SimtMeetingTest, LanesThatWaitForEachOtherElsewhere) {
  expect_found("vote_or_barrier", AnyOf(HasSubstr("waits at the"), HasSubstr("calls the")),
               on_warps(cuda::Kernel<vote_or_barrier>(), 32));
}

// Lane i of a row: the results of __shfl_up, _down, _sync of width 8 for lane i, and of eight bytes
// at once.
__global__ void shuffles(int* y) {
  if (threadIdx.x >= 32 || blockIdx.x != 0) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int up = __shfl_up_sync(kFull, lane, 3);
  const int down = __shfl_down_sync(kFull, lane, 3, 8);
  const int one = __shfl_sync(kFull, lane, 2, 8);
  const double wide = __shfl_sync(kFull, lane + 0.25, 31);
  if (lane == 1) y[0] = up, y[1] = down, y[2] = one;
  if (lane == 13) y[3] = up, y[4] = down, y[5] = one, y[6] = static_cast<int>(4 * wide);
}

TEST_F(SimtMeetingTest, ShufflesMoveWhatCudaMoves) {
  expect_nothing(on_warps(cuda::Kernel<shuffles>(), 32));
  const std::vector<int> all = y.values();
  EXPECT_THAT(std::vector<int>(all.begin(), all.begin() + 7),
              ElementsAre(1, 4, 2, 10, 13, 10, 125));
}

}  // namespace
}  // namespace sluiceway::test
