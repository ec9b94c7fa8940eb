// EngineLanes on CUDA device 0: which work goes first, and copies over links with a rate.
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/launch.cuh"
#include "runtime/engine/engine_lanes.h"
#include "tests/runtime/device/cuda_bytes.h"
#include "tests/simt/planted.h"
#include "tests/support/device_array.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr LanePlan kPlan{.device_lane = 2};

std::vector<LaneSpec> specs() {
  using enum LaneSpec::Runs;
  return {{"d2h", kOnDevice}, {"h2d", kOnDevice}, {"apply", kOnDevice, 1, -1, true}};
}

EngineLanes::Options options_with(double gbps) {
  EngineLanes::Options options(kCuda0);
  options.limits.fill(Budget::kUnlimited);
  options.d2h = options.h2d = {.gbps = gbps, .latency_us = 0};
  return options;
}

class SimtLanesTest : public SimtTest {};

TEST_F(SimtLanesTest, UrgentLaneGoesBeforeTheLinks) {
  EngineLanes lanes(options_with(0), specs(), kPlan, 1);
  std::vector<int> priorities(3, 1);
  Payload payload{.name = "priorities"};
  for (int lane = 0; lane < 3; ++lane) {
    payload.hops.push_back({.lane = lane, .run = [&priorities, lane](StreamRef ref) {
                              cudaStreamGetPriority(static_cast<cudaStream_t>(ref.native()),
                                                    &priorities[static_cast<std::size_t>(lane)]);
                            }});
  }
  lanes.executor().submit(std::move(payload));
  lanes.executor().release();
  lanes.wait(0);
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  EXPECT_THAT(priorities, ElementsAre(least, least, greatest));
}

__global__ void add_one(float* x) { x[threadIdx.x] += 1.0F; }

// The hops are enqueued at once, each after the event of the previous one; no thread waits in
// between.
TEST_F(SimtLanesTest, PayloadsPassPacedLinksInOrderAndNeverTooEarly) {
  constexpr int kKeys = 4;
  constexpr std::size_t kElems = 1000;
  constexpr double kGbps = 0.001;  // 4 ms a copy.
  for (int seed = 1; seed <= kSeeds; ++seed) {
    simt::set_seed(static_cast<std::uint64_t>(seed));
    EngineLanes lanes(options_with(kGbps), specs(), kPlan, kKeys);
    const Allocation staging = pinned(kKeys * kElems * sizeof(float));
    std::vector<std::unique_ptr<DeviceArray<float>>> cores, arrived;
    const double begin_us = now_us();
    for (int key = 0; key < kKeys; ++key) {
      cores.push_back(std::make_unique<DeviceArray<float>>(
          std::vector<float>(kElems, static_cast<float>(key))));
      arrived.push_back(std::make_unique<DeviceArray<float>>(kElems));
      auto* const place = staging.data() + static_cast<std::size_t>(key) * kElems * sizeof(float);
      float* const core = cores.back()->data();
      float* const target = arrived.back()->data();
      const std::size_t bytes = kElems * sizeof(float);
      Payload payload{.key = key, .deadline = static_cast<std::uint64_t>(key), .name = "core"};
      payload.hops = {{0, [&lanes, place, core,
                           bytes](StreamRef s) { lanes.d2h().copy(place, core, bytes, s); }},
                      {1, [&lanes, place, target,
                           bytes](StreamRef s) { lanes.h2d().copy(target, place, bytes, s); }},
                      {2, [target](StreamRef s) {
                         cuda::launch("add_one", cuda::Kernel<add_one>(), {1, 1000}, s, target);
                       }}};
      lanes.executor().submit(std::move(payload));
    }
    lanes.executor().release();
    for (int key = 0; key < kKeys; ++key) lanes.wait(key);
    const double seconds = (now_us() - begin_us) * 1e-6;
    EXPECT_GE(seconds, (kKeys + 1) * 4e-3);  // Only the first and last copy do not overlap.
    EXPECT_EQ(lanes.take_use().d2h_bytes, kKeys * kElems * sizeof(float));
    for (int key = 0; key < kKeys; ++key) {
      EXPECT_THAT(arrived[static_cast<std::size_t>(key)]->values(),
                  Each(static_cast<float>(key) + 1.0F));
    }
  }
}

// A step is enqueued while the device is held, by a lane that allocates or by one that allocated
// before.
class SimtLaneStepTest : public SimtLanesTest {
 protected:
  static constexpr std::size_t kElems = 1000, kBytes = kElems * sizeof(float);

  static std::vector<LaneSpec> host_first() {
    using enum LaneSpec::Runs;
    return {{"host", kOnHost}, {"h2d", kOnDevice}, {"apply", kOnDevice, 1, -1, true}};
  }

  Payload payload(bool allocates) {
    Payload made{.name = "core"};
    made.hops = {
        {0, [](StreamRef) {}},
        {1,
         [this, allocates](StreamRef stream) {
           if (allocates) extra_.emplace(kElems);
           lanes_.h2d().copy(target_.data(), staging_.data(), kBytes, stream);
         }},
        {2, [this](StreamRef stream) {
           cuda::launch("add_one", cuda::Kernel<add_one>(), {1, kElems}, stream, target_.data());
         }}};
    return made;
  }

  void step(bool allocates) {
    lanes_.executor().submit(payload(allocates));
    lanes_.executor().release();
  }

  EngineLanes lanes_{options_with(0), host_first(), kPlan, 1};
  Allocation staging_ = pinned(kBytes);
  DeviceArray<float> target_{kElems};
  DeviceArray<float> busy_{std::vector<float>(kElems)};
  std::optional<DeviceArray<float>> extra_;
  Stream compute_ = Stream::owned(kCuda0, {"compute"});

  void SetUp() override {
    std::memset(staging_.data(), 0, kBytes);
    compute_.enqueue([this](StreamRef stream) {
      cuda::launch("add_one", cuda::Kernel<add_one>(), {1, kElems}, stream, busy_.data());
    });
    step(false);  // Loads what it launches.
    lanes_.wait(0);
    compute_.synchronize();
  }
};

TEST_F(SimtLaneStepTest, LaneThatAllocatesInAStepIsFound) {
  {
    const simt::Hold hold;
    compute_.enqueue([this](StreamRef stream) {
      cuda::launch("add_one", cuda::Kernel<add_one>(), {1, kElems}, stream, busy_.data());
    });
    step(true);
    EXPECT_THROW(lanes_.wait(0), Error);
  }
  EXPECT_THAT(simt::take_findings(),
              ElementsAre(AllOf(HasSubstr("thread sw-host holds the driver in cudaMalloc"),
                                HasSubstr("waits until thread main lets go of the device"))));
}

TEST_F(SimtLaneStepTest, LaneThatHasAllItNeedsEnqueuesWhileTheDeviceIsHeld) {
  simt::reset_calls();
  {
    const simt::Hold hold;
    compute_.enqueue([this](StreamRef stream) {
      cuda::launch("add_one", cuda::Kernel<add_one>(), {1, kElems}, stream, busy_.data());
    });
    step(false);
    while (simt::calls().total("cudaMemcpyAsync") == 0) sleep_ms(1);
  }
  lanes_.wait(0);
  EXPECT_THAT(target_.values(), Each(1.0F));
}

}  // namespace
}  // namespace sluiceway::test
