// Links of the host device: contents, byte counts, and the time that the rate requires.
//
// A copy is never tested for an upper bound closer than kLate: the machine may be busy.
#include "runtime/device/link_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/trace/trace.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kLateS = 2;
constexpr LinkDirection kD2h = LinkDirection::kDeviceToHost;

template <typename Work>
double seconds_of(Work work) {
  const double begin_us = now_us();
  work();
  return (now_us() - begin_us) * 1e-6;
}

// Returns the time by the formula of the header.
double seconds_on(const LinkCopy::Config& link, double bytes) {
  return link.latency_us * 1e-6 + (link.gbps > 0 ? bytes / (link.gbps * 1e9) : 0);
}

class LinkCopyTest : public testing::Test {
 protected:
  std::vector<char> source = std::vector<char>(1'000'003, 'x');
  std::vector<char> target = std::vector<char>(1'000'003, '-');

  void copy(LinkCopy& link, std::size_t bytes) {
    link.copy(target.data(), source.data(), bytes, StreamRef::host());
  }
};

TEST_F(LinkCopyTest, MovesExactlyTheBytesAskedFor) {
  std::iota(source.begin(), source.end(), static_cast<char>(3));
  LinkCopy link(DeviceId::host(), kD2h, {});
  link.copy(target.data() + 1, source.data() + 2, 999, StreamRef::host());
  EXPECT_TRUE(std::equal(target.begin() + 1, target.begin() + 1000, source.begin() + 2));
  EXPECT_EQ(target[0], '-');
  EXPECT_EQ(target[1000], '-');
}

TEST_F(LinkCopyTest, CountsEveryByteOnce) {
  LinkCopy link(DeviceId::host(), kD2h, {});
  copy(link, 7);
  copy(link, 0);
  copy(link, 1'000'003);
  EXPECT_EQ(link.bytes(), 1'000'010U);
}

TEST_F(LinkCopyTest, CountsBytesOfManyThreads) {
  LinkCopy link(DeviceId::host(), kD2h, {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      std::vector<char> mine(13);
      for (int i = 0; i < 1000; ++i) {
        link.copy(mine.data(), source.data(), mine.size(), StreamRef::host());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(link.bytes(), 4U * 1000U * 13U);
}

TEST_F(LinkCopyTest, CopyNeverTakesLessThanItsTime) {
  for (const LinkCopy::Config config : {LinkCopy::Config{.gbps = 0.05, .latency_us = 0},
                                        LinkCopy::Config{.gbps = 0.1, .latency_us = 5000},
                                        LinkCopy::Config{.gbps = 0, .latency_us = 10'000}}) {
    LinkCopy link(DeviceId::host(), kD2h, config);
    const double predicted_s = seconds_on(config, 1'000'000);
    const double seconds = seconds_of([&] { copy(link, 1'000'000); });
    EXPECT_GE(seconds, predicted_s);
    EXPECT_LT(seconds, predicted_s + kLateS);
    EXPECT_EQ(target[999'999], 'x');
  }
}

TEST_F(LinkCopyTest, EmptyCopyStillPaysTheLatency) {
  LinkCopy link(DeviceId::host(), kD2h, {.gbps = 1, .latency_us = 10'000});
  EXPECT_GE(seconds_of([&] { link.copy(nullptr, nullptr, 0, StreamRef::host()); }), 0.01);
}

TEST_F(LinkCopyTest, ChainOfCopiesTakesTheSumOfTheirTimes) {
  constexpr int kCopies = 100;
  const LinkCopy::Config config{.gbps = 0.1, .latency_us = 100};
  LinkCopy link(DeviceId::host(), kD2h, config);
  const double predicted_s = kCopies * seconds_on(config, 100'000);  // 1.1 ms each.
  const double seconds = seconds_of([&] {
    for (int i = 0; i < kCopies; ++i) copy(link, 100'000);
  });
  RecordProperty("late_us_per_copy", std::to_string((seconds - predicted_s) * 1e6 / kCopies));
  EXPECT_GE(seconds, predicted_s);
  EXPECT_LT(seconds, predicted_s + kLateS);
}

TEST_F(LinkCopyTest, CopiesAtOnceShareTheRate) {
  constexpr int kThreads = 4;
  LinkCopy link(DeviceId::host(), kD2h, {.gbps = 0.05, .latency_us = 1000});
  std::vector<std::thread> threads;
  const double seconds = seconds_of([&] {
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        std::vector<char> mine(1'000'000);
        link.copy(mine.data(), source.data(), mine.size(), StreamRef::host());
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  // Four times 20 ms on the wire; latencies overlap with the next copy's time on the wire.
  EXPECT_GE(seconds, kThreads * 0.02 + 0.001);
  EXPECT_LT(seconds, kThreads * 0.02 + 0.001 + kLateS);
}

TEST_F(LinkCopyTest, TwoLinksDoNotShareTheRate) {
  LinkCopy slow(DeviceId::host(), kD2h,
                {.gbps = 0.001, .latency_us = 0});  // A second for a megabyte.
  LinkCopy fast(DeviceId::host(), LinkDirection::kHostToDevice, {.gbps = 1, .latency_us = 0});
  std::vector<char> mine(1'000'000);
  std::atomic<bool> slow_started{false};
  std::atomic<bool> slow_finished{false};
  std::thread other([&] {
    slow_started = true;
    slow.copy(mine.data(), source.data(), mine.size(), StreamRef::host());
    slow_finished = true;
  });
  while (!slow_started) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) copy(fast, 1'000'000);
  EXPECT_FALSE(slow_finished);
  other.join();
}

TEST_F(LinkCopyTest, IdleLinkSavesUpNothing) {
  LinkCopy link(DeviceId::host(), kD2h, {.gbps = 0.1, .latency_us = 0});
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_GE(seconds_of([&] { copy(link, 1'000'000); }), 0.01);
}

TEST_F(LinkCopyTest, SleepsInsteadOfSpinning) {
  LinkCopy link(DeviceId::host(), kD2h, {.gbps = 0, .latency_us = 300'000});
  const auto thread_cpu_s = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double before_s = thread_cpu_s();
  copy(link, 1000);
  EXPECT_LT(thread_cpu_s() - before_s, 0.1);
}

TEST_F(LinkCopyTest, RefusesWhatIsNoRate) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double bad : {-1.0, kNan, kInfinity}) {
    EXPECT_THAT([&] { LinkCopy(DeviceId::host(), kD2h, {.gbps = bad, .latency_us = 0}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("GB/s, expected 0")));
    EXPECT_THAT([&] { LinkCopy(DeviceId::host(), kD2h, {.gbps = 1, .latency_us = bad}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("us, expected 0")));
  }
}

TEST_F(LinkCopyTest, RefusesNullAndForeignStreamsAndCountsNothing) {
  LinkCopy link(DeviceId::host(), kD2h, {});
  EXPECT_THAT([&] { link.copy(nullptr, source.data(), 5, StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("5 bytes from or to a null pointer")));
  EXPECT_THAT([&] { link.copy(target.data(), source.data(), 5, StreamRef::cuda(2, nullptr)); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("the stream is on CUDA device 2, expected the host device")));
  EXPECT_EQ(link.bytes(), 0U);
}

}  // namespace
}  // namespace sluiceway::test
