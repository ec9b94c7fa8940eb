// Events of the host device: when they happen, who hears of it, and how waiting is done.
#include "runtime/device/event.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "runtime/device/event_state.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;

// Holds a stream until open() is called.
class Gate {
 public:
  Stream::Task task() {
    return [future = opened_.get_future().share()](StreamRef) { future.wait(); };
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

double process_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(EventTest, DefaultEventHasAlreadyHappened) {
  const Event event;
  EXPECT_TRUE(event.happened());
  event.wait();
}

TEST(EventTest, HappensWhenTheWorkBeforeItHasFinishedAndNotEarlier) {
  Gate gate;
  Stream stream = Stream::host({"events"});
  stream.enqueue(gate.task());
  const Event event = stream.record();
  EXPECT_FALSE(event.happened());
  gate.open();
  event.wait();
  EXPECT_TRUE(event.happened());
}

TEST(EventTest, CopiesNameTheSamePoint) {
  Gate gate;
  Stream stream = Stream::host({"events"});
  stream.enqueue(gate.task());
  const Event event = stream.record();
  const Event copy = event;
  gate.open();
  event.wait();
  EXPECT_TRUE(copy.happened());
}

TEST(EventTest, OutlivesItsStream) {
  Event event;
  {
    Stream stream = Stream::host({"events"});
    stream.enqueue([](StreamRef) { std::this_thread::sleep_for(milliseconds(5)); });
    event = stream.record();
  }
  EXPECT_TRUE(event.happened());
  event.wait();
}

TEST(EventTest, WakesEveryThreadThatWaits) {
  Gate gate;
  Stream stream = Stream::host({"events"});
  stream.enqueue(gate.task());
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

TEST(EventTest, WhatTheStreamWroteIsSeenByWhoWaited) {
  Stream stream = Stream::host({"events"});
  for (int i = 0; i < 200; ++i) {
    int written = 0;  // Not atomic: the thread sanitizer would see a missing publication.
    stream.enqueue([&written, i](StreamRef) { written = i; });
    const Event event = stream.record();
    if (i % 2 == 0) event.wait();
    while (!event.happened()) std::this_thread::yield();
    EXPECT_EQ(written, i);
  }
}

TEST(EventTest, ActionRunsOnceWhetherTheEventHappenedBeforeOrLater) {
  HostEvent event;
  int calls = 0;
  event.then([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  event.set();
  EXPECT_EQ(calls, 1);
  event.then([&] { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST(EventTest, NoActionIsLostWhenAddedWhileTheEventHappens) {
  for (int round = 0; round < 200; ++round) {
    HostEvent event;
    std::atomic<int> calls{0};
    std::thread setter([&] { event.set(); });
    for (int i = 0; i < 10; ++i) event.then([&] { ++calls; });
    setter.join();
    EXPECT_EQ(calls, 10);
  }
}

TEST(EventTest, WaitingTakesNoProcessorTime) {
  constexpr double kWallS = 0.3;
  Gate gate;
  Stream first = Stream::host({"first"});
  first.enqueue(gate.task());
  const Event event = first.record();
  std::vector<Stream> waiting;  // Streams that wait, streams with nothing to do, and this thread.
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(Stream::host({"waiting"}));
    if (i % 2 == 0) waiting.back().wait(event);
  }
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
