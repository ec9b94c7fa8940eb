// EngineLanes on CUDA device 0: which waits are stalls of the device, and when they are reported.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>

#include "runtime/engine/engine_lanes.h"
#include "runtime/trace/trace.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

constexpr DeviceId kCuda0 = DeviceId::cuda(0);
constexpr LaneId kHost = 0, kApply = 1;

class CudaLanesTest : public testing::Test {
 protected:
  CudaLanesTest() {
    compute.enqueue([this](StreamRef ref) { compute_ref = ref; });
    lanes.compute(compute_ref);
  }

  static EngineLanes::Options options() {
    EngineLanes::Options options(kCuda0);
    options.limits.fill(Budget::kUnlimited);
    return options;
  }

  void submit(Stream::Task on_host, Stream::Task apply) {
    Payload payload;
    payload.name = "weight";
    payload.hops = {{kHost, std::move(on_host)}, {kApply, std::move(apply)}};
    lanes.executor().submit(std::move(payload));
  }

  // Returns the stalls of all work enqueued so far on the computing stream.
  double stall_s() {
    compute.synchronize();
    return lanes.take_use().stall_seconds;
  }
  double since_begin_s() const { return (now_us() - begin_us) * 1e-6; }

  static void nothing(StreamRef) {}

  Stream compute = Stream::owned(kCuda0, {"compute"});
  StreamRef compute_ref = StreamRef::host();
  EngineLanes lanes{
      options(), {{"host"}, {"apply", LaneSpec::Runs::kOnDevice}}, {.device_lane = kApply}, 1};
  double begin_us = now_us();
};

TEST_F(CudaLanesTest, AnUpdateThatIsLateIsAStall) {
  submit([](StreamRef) { sleep_ms(120); }, nothing);
  lanes.acquire(0, compute_ref);
  const double found_s = stall_s();
  EXPECT_GE(found_s, 0.060);
  EXPECT_LE(found_s, since_begin_s());
  EXPECT_EQ(lanes.take_use().stall_seconds, 0);
}

TEST_F(CudaLanesTest, AcquireReturnsWhenTheUpdateIsEnqueuedThoughTheDeviceHasNotRunIt) {
  Gate gate(kCuda0);
  submit(nothing, [&gate](StreamRef ref) { gate.hold(ref); });
  lanes.acquire(0, compute_ref);
  const Event reached = compute.record();
  EXPECT_TRUE(lanes.executor().busy(0));
  EXPECT_FALSE(reached.happened());
  gate.open();
  reached.wait();
}

TEST_F(CudaLanesTest, WhatTheDeviceHasNotComeToIsToldInALaterLook) {
  compute.enqueue(task_of([] { sleep_ms(150); }));
  submit([](StreamRef) { sleep_ms(30); }, task_of([] { sleep_ms(240); }));
  lanes.acquire(0, compute_ref);
  EXPECT_EQ(lanes.take_use().stall_seconds, 0);
  const double found_s = stall_s();
  EXPECT_LE(found_s, since_begin_s() - 0.240);
}

TEST_F(CudaLanesTest, AWaitWhileItsLaneWorksIsNoStall) {
  for (int round = 0; round < 3; ++round) {
    begin_us = now_us();
    submit(nothing, task_of([] { sleep_ms(60); }));
    lanes.acquire(0, compute_ref);
    const double found_s = stall_s();
    EXPECT_LE(found_s, since_begin_s() - 0.060);
  }
}

TEST_F(CudaLanesTest, AThreadThatIsBlockedCostsWhatTheDeviceStandsStill) {
  const auto slowly = [](StreamRef) { sleep_ms(60); };
  submit(slowly, nothing);
  lanes.wait(0);
  const double idle_s = stall_s();
  EXPECT_GE(idle_s, 0.030);
  EXPECT_LE(idle_s, since_begin_s());

  for (const bool acquires : {false, true}) {
    begin_us = now_us();
    compute.enqueue(task_of([] { sleep_ms(120); }));
    submit(slowly, nothing);
    acquires ? lanes.acquire(0, compute_ref) : lanes.wait(0);
    const double busy_s = stall_s();
    EXPECT_LE(busy_s, since_begin_s() - 0.120);
  }
}

TEST_F(CudaLanesTest, WhatIsThroughBeforeItIsWaitedForIsNone) {
  submit([](StreamRef) { sleep_ms(5); }, nothing);
  while (lanes.executor().busy(0)) sleep_ms(1);
  lanes.acquire(0, compute_ref);
  lanes.wait(0);
  EXPECT_EQ(stall_s(), 0);
}

}  // namespace
}  // namespace sluiceway::test
