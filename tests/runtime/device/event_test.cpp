// Events of every device: when they happen, who is notified, and how threads wait.
#include "runtime/device/event.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/event_state.h"
#include "tests/support/backend.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

double process_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class EventTest : public testing::TestWithParam<DeviceId> {
 protected:
  static Stream make(std::string name) { return Stream::owned(GetParam(), {std::move(name)}); }
};

INSTANTIATE_TEST_SUITE_P(Devices, EventTest, testing::ValuesIn(built_devices()), device_name);

TEST(HostEventTest, DefaultEventHasAlreadyHappened) {
  const Event event;
  EXPECT_TRUE(event.happened());
  event.wait();
}

TEST_P(EventTest, HappensWhenTheWorkBeforeItHasFinishedAndNotEarlier) {
  Stream stream = make("events");
  Gate gate(GetParam());
  gate.hold(stream);
  const Event event = stream.record();
  EXPECT_FALSE(event.happened());
  gate.open();
  event.wait();
  EXPECT_TRUE(event.happened());
}

TEST_P(EventTest, CopiesNameTheSamePoint) {
  Stream stream = make("events");
  Gate gate(GetParam());
  gate.hold(stream);
  const Event event = stream.record();
  const Event copy = event;
  gate.open();
  event.wait();
  EXPECT_TRUE(copy.happened());
}

TEST_P(EventTest, OutlivesItsStream) {
  Event event;
  {
    Stream stream = make("events");
    stream.enqueue(task_of([] { sleep_ms(5); }));
    event = stream.record();
  }
  EXPECT_TRUE(event.happened());
  event.wait();
}

TEST_P(EventTest, WakesEveryThreadThatWaits) {
  Stream stream = make("events");
  Gate gate(GetParam());
  gate.hold(stream);
  const Event event = stream.record();
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      event.wait();
      ++woken;
    });
  }
  EXPECT_EQ(woken, 0);
  gate.open();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, 8);
}

TEST_P(EventTest, WhatTheStreamWroteIsSeenByWhoWaited) {
  Stream stream = make("events");
  for (int i = 0; i < 200; ++i) {
    int written = 0;  // Not atomic: the thread sanitizer would see a missing publication.
    stream.enqueue(task_of([&written, i] { written = i; }));
    const Event event = stream.record();
    if (i % 2 == 0) event.wait();
    while (!event.happened()) std::this_thread::yield();
    EXPECT_EQ(written, i);
  }
}

TEST(HostEventTest, ActionRunsOnceWhetherTheEventHappenedBeforeOrLater) {
  HostEvent event;
  int calls = 0;
  event.then([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  event.set();
  EXPECT_EQ(calls, 1);
  event.then([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(HostEventTest, NoActionIsLostWhenAddedWhileTheEventHappens) {
  for (int round = 0; round < 200; ++round) {
    HostEvent event;
    std::atomic<int> calls{0};
    std::thread setter([&] { event.set(); });
    for (int i = 0; i < 10; ++i) event.then([&] { ++calls; });
    setter.join();
    EXPECT_EQ(calls, 10);
  }
}

TEST_P(EventTest, WaitingTakesNoProcessorTime) {
  constexpr double kWallS = 0.3;
  Stream first = make("first");
  std::vector<Stream> waiting;  // Streams that wait, streams with nothing to do, and this thread.
  for (int i = 0; i < 8; ++i) waiting.push_back(make("waiting"));
  Gate gate(GetParam());
  gate.hold(first);
  const Event event = first.record();
  for (std::size_t i = 0; i < waiting.size(); i += 2) waiting[i].wait(event);
  const double before_s = process_cpu_s();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(kWallS));
    gate.open();
  });
  event.wait();
  EXPECT_LT(process_cpu_s() - before_s, kWallS / 3);  // One spinning thread would take all of it.
  opener.join();
}

}  // namespace
}  // namespace sluiceway::test
