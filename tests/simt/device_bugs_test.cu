// Work for one of two devices while the other is current, which the SIMT machine must find. Our own
// calls always name their device; each one here gets the wrong one, or goes around them.
#include <string>

#include "kernels/cuda/launch.cuh"
#include "runtime/device/device_memory.h"
#include "tests/simt/planted.h"
#include "tests/support/what_of.h"

namespace sluiceway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr DeviceId kFirst = DeviceId::cuda(0), kSecond = DeviceId::cuda(1);
constexpr unsigned kElems = 32;

__global__ void set_all(float* x, float value) { x[threadIdx.x] = value; }

class SimtTwoDevicesTest : public SimtTest {
 protected:
  static float* allocate(DeviceId device) {
    return static_cast<float*>(allocate_device_bytes(device, kElems * sizeof(float)));
  }
  static void release(DeviceId device, float* x) {
    free_device_bytes(device, x, kElems * sizeof(float));
  }
  // Launches on the stream's own device if `guarded`, otherwise on the current one.
  static void launch_set_all(StreamRef ref, float* x, bool guarded) {
    if (guarded) return cuda::launch("set_all", cuda::Kernel<set_all>(), {1, kElems}, ref, x, 3.0F);
    const cudaLaunchConfig_t config{1,       kElems, 0, static_cast<cudaStream_t>(ref.native()),
                                    nullptr, 0};
    cuda::check_launch(cudaLaunchKernelEx(&config, set_all, x, 3.0F), "set_all");
  }
};

TEST_F(SimtTwoDevicesTest, KernelsRunOnTheDeviceOfTheirStreamWhicheverIsCurrent) {
  for (const DeviceId device : {kFirst, kSecond}) {
    for (const DeviceId current : {kFirst, kSecond}) {
      const DeviceGuard guard(current);
      float* const x = allocate(device);
      run_on_stream(device, [&](StreamRef ref) {
        const DeviceGuard other(current);
        launch_set_all(ref, x, true);
      });
      std::vector<float> values(kElems);
      copy_device_bytes(device, values.data(), x, kElems * sizeof(float));
      EXPECT_THAT(values, testing::Each(3.0F));
      release(device, x);
      int now = -1;
      EXPECT_EQ(cudaGetDevice(&now), cudaSuccess);
      EXPECT_EQ(now, current.ordinal());
    }
  }
}

TEST_F(SimtTwoDevicesTest, LaunchWithoutAGuard) {
  float* const x = allocate(kFirst);
  const auto launch_on_other = [&](StreamRef ref) {
    const DeviceGuard other(kSecond);
    launch_set_all(ref, x, false);
  };
  EXPECT_THAT(what_of([&] { run_on_stream(kFirst, launch_on_other); }), HasSubstr("set_all"));
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(HasSubstr("set_all(float*, float) with a stream of CUDA device 0 while "
                                    "device 1 is current")));
  run_on_stream(kFirst, [&](StreamRef ref) { launch_set_all(ref, x, false); });
  release(kFirst, x);
}

TEST_F(SimtTwoDevicesTest, KernelWithMemoryOfTheOtherDevice) {
  float* const x = allocate(kSecond);
  expect_found("set_all", HasSubstr("of CUDA device 1, byte "),
               [&](StreamRef ref) { launch_set_all(ref, x, true); });
  release(kSecond, x);
}

TEST_F(SimtTwoDevicesTest, MemoryThatIsFreedWithoutAGuard) {
  float* const x = allocate(kFirst);
  {
    const DeviceGuard other(kSecond);
    EXPECT_NE(cudaFree(x), cudaSuccess);
  }
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(HasSubstr("cudaFree with memory of CUDA device 0 while device 1")));
  const DeviceGuard other(kSecond);
  release(kFirst, x);
}

TEST_F(SimtTwoDevicesTest, EventOfTheOtherDevice) {
  Stream stream = Stream::owned(kFirst, {"first"});
  cudaEvent_t event = nullptr;
  {
    const DeviceGuard other(kSecond);
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  }
  stream.enqueue([&](StreamRef ref) {
    EXPECT_NE(cudaEventRecord(event, static_cast<cudaStream_t>(ref.native())), cudaSuccess);
  });
  EXPECT_NE(what_of([&] { stream.synchronize(); }), "");
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(HasSubstr("cudaEventRecord with an event of CUDA device 1")));
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

}  // namespace
}  // namespace sluiceway::test
