// Priorities of streams of CUDA device 0. A machine without one fails here.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/device/stream.h"

namespace sluiceway::test {
namespace {

int priority_of(Stream::Priority asked) {
  Stream stream = Stream::owned(DeviceId::cuda(0), {"sw-test", -1, asked});
  int priority = 1;
  stream.enqueue([&](StreamRef ref) {
    EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(ref.native()), &priority),
              cudaSuccess);
  });
  stream.synchronize();
  return priority;
}

TEST(CudaPriorityTest, HighIsTheGreatestOfTheDeviceAndDefaultTheLeast) {
  const DeviceGuard guard(DeviceId::cuda(0));
  int least = 0, greatest = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_EQ(priority_of(Stream::Priority::kHigh), greatest);
  EXPECT_EQ(priority_of(Stream::Priority::kDefault), least);
}

}  // namespace
}  // namespace sluiceway::test
