// Links of CUDA device 0 with a rate: a copy must not finish earlier than its wire allows. A
// machine without a device fails here.
//
// A copy is never tested for an upper bound closer than kLateS: the machine may be busy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "kernels/base/error.h"
#include "runtime/device/link_copy.h"
#include "runtime/device/stream.h"
#include "runtime/trace/trace.h"
#include "tests/runtime/device/cuda_bytes.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kLateS = 5;
constexpr LinkDirection kD2h = LinkDirection::kDeviceToHost;
constexpr LinkDirection kH2d = LinkDirection::kHostToDevice;

double seconds_since(double begin_us) { return (now_us() - begin_us) * 1e-6; }

class CudaLinkTest : public testing::Test {
 protected:
  static constexpr std::size_t kBytes = 1'000'000;

  CudaLinkTest() {
    std::memset(source.data(), 'x', kBytes);
    std::memset(target.data(), '-', kBytes);
    fill_device_bytes(kCuda0, device.data(), std::byte{'y'}, kBytes);
  }

  void up(Stream& on, LinkCopy& link, std::size_t bytes = kBytes) {
    on.enqueue([&link, this, bytes](StreamRef ref) {
      link.copy(device.data(), source.data(), bytes, ref);
    });
  }
  void down(Stream& on, LinkCopy& link, std::size_t bytes = kBytes) {
    on.enqueue([&link, this, bytes](StreamRef ref) {
      link.copy(target.data(), device.data(), bytes, ref);
    });
  }

  Allocation source = pinned(kBytes), target = pinned(kBytes), device = on_device(kBytes);
  Stream first = Stream::owned(kCuda0, {.name = "first", .own_thread = true});
  Stream second = Stream::owned(kCuda0, {.name = "second", .own_thread = true});
};

TEST_F(CudaLinkTest, CopyNeverTakesLessThanItsTimeAndIsCounted) {
  for (const LinkCopy::Config config : {LinkCopy::Config{.gbps = 0.05, .latency_us = 0},
                                        LinkCopy::Config{.gbps = 0.1, .latency_us = 5000},
                                        LinkCopy::Config{.gbps = 0, .latency_us = 10'000}}) {
    LinkCopy link(kCuda0, kD2h, config);
    const double predicted_s =
        config.latency_us * 1e-6 + (config.gbps > 0 ? 1e-9 * kBytes / config.gbps : 0);
    const double begin_us = now_us();
    down(first, link);
    first.synchronize();
    const double seconds = seconds_since(begin_us);
    EXPECT_GE(seconds, predicted_s);
    EXPECT_LT(seconds, predicted_s + kLateS);
    EXPECT_EQ(link.bytes(), kBytes);
    EXPECT_EQ(target.data()[kBytes - 1], 'y');
  }
}

TEST_F(CudaLinkTest, ChainOfCopiesTakesTheSumOfTheirTimes) {
  constexpr int kCopies = 100;
  LinkCopy link(kCuda0, kH2d, {.gbps = 0.1, .latency_us = 100});
  const double predicted_s = kCopies * 1.1e-3;
  const double begin_us = now_us();
  for (int i = 0; i < kCopies; ++i) up(first, link, 100'000);
  first.synchronize();
  const double seconds = seconds_since(begin_us);
  RecordProperty("late_us_per_copy", std::to_string((seconds - predicted_s) * 1e6 / kCopies));
  EXPECT_GE(seconds, predicted_s);
  EXPECT_LT(seconds, predicted_s + kLateS);
  EXPECT_EQ(link.bytes(), 100'000U * kCopies);
}

TEST_F(CudaLinkTest, CopiesOfTwoStreamsShareTheRate) {
  LinkCopy link(kCuda0, kH2d, {.gbps = 0.05, .latency_us = 1000});
  const Allocation other = on_device(kBytes);
  const double begin_us = now_us();
  up(first, link);
  second.enqueue([&](StreamRef ref) { link.copy(other.data(), source.data(), kBytes, ref); });
  first.synchronize();
  second.synchronize();
  EXPECT_GE(seconds_since(begin_us), 2 * 0.02 + 0.001);
}

// The thread that requests a copy does not wait for it either: the event would have happened.
TEST_F(CudaLinkTest, OtherDirectionDoesNotWaitForASlowOne) {
  LinkCopy slow(kCuda0, kH2d, {.gbps = 0.001, .latency_us = 0});  // A second for a megabyte.
  LinkCopy fast(kCuda0, kD2h, {.gbps = 1, .latency_us = 0});
  const Allocation other = on_device(kBytes);
  fill_device_bytes(kCuda0, other.data(), std::byte{'z'}, kBytes);
  up(first, slow);
  const Event slow_done = first.record();
  for (int i = 0; i < 3; ++i) {
    second.enqueue([&](StreamRef ref) { fast.copy(target.data(), other.data(), kBytes, ref); });
  }
  second.synchronize();
  EXPECT_EQ(target.data()[0], 'z');
  EXPECT_FALSE(slow_done.happened());
  first.synchronize();
  EXPECT_TRUE(slow_done.happened());
}

TEST_F(CudaLinkTest, StreamThatWaitsForACopyIsNotEarly) {
  LinkCopy link(kCuda0, kH2d, {.gbps = 0.02, .latency_us = 0});
  LinkCopy bus(kCuda0, kD2h, {});
  const double begin_us = now_us();
  up(first, link);
  second.wait(first.record());
  down(second, bus);
  second.synchronize();
  EXPECT_GE(seconds_since(begin_us), 0.05);
  EXPECT_EQ(target.data()[0], 'x');
}

TEST_F(CudaLinkTest, EmptyCopyStillPaysTheLatency) {
  LinkCopy link(kCuda0, kH2d, {.gbps = 1, .latency_us = 10'000});
  const double begin_us = now_us();
  first.enqueue([&](StreamRef ref) { link.copy(nullptr, nullptr, 0, ref); });
  first.synchronize();
  EXPECT_GE(seconds_since(begin_us), 0.01);
}

TEST_F(CudaLinkTest, EmptyCopyOfAnUnthrottledLinkIsNothing) {
  LinkCopy link(kCuda0, kH2d, {});
  first.enqueue([&](StreamRef ref) { link.copy(nullptr, nullptr, 0, ref); });
  first.synchronize();
  EXPECT_EQ(link.bytes(), 0U);
}

TEST_F(CudaLinkTest, CompletionTellsTheTimeOnTheWire) {
  LinkCopy link(kCuda0, kH2d, {.gbps = 0.05, .latency_us = 0});
  double elapsed_us = 0;
  first.enqueue([&](StreamRef ref) { link.copy(device.data(), source.data(), kBytes, ref); },
                [&](const Completion& done) { elapsed_us = done.end_us - done.begin_us; });
  first.synchronize();
  EXPECT_GE(elapsed_us, 20'000);
}

// A thread that gives a paced copy to a stream without a thread sleeps, and no stream waits for
// that.
TEST_F(CudaLinkTest, AStreamWithoutAThreadLetsItsCallerSleep) {
  LinkCopy link(kCuda0, kH2d, {.gbps = 0.05, .latency_us = 0});
  Stream plain = Stream::owned(kCuda0, {"plain"});
  const double begin_us = now_us();
  up(plain, link);
  EXPECT_GE(seconds_since(begin_us), 0.02);
  plain.synchronize();
}

TEST_F(CudaLinkTest, WorkOnTheLinkIsRefused) {
  LinkCopy link(kCuda0, kD2h, {.gbps = 1, .latency_us = 0});
  EXPECT_THAT([&] { link.cross(5, [] {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("for the host device only")));
}

}  // namespace
}  // namespace sluiceway::test
