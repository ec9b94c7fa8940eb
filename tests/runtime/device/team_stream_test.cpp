// A stream of several threads: tasks run in parallel, and events, waits, errors and the end mean
// the same as for every stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

#include "runtime/device/event_state.h"
#include "runtime/device/stream.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Stream team_of(int threads) { return Stream::host({.name = "sw-team", .threads = threads}); }

void sleep_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

TEST(TeamStreamTest, AsManyTasksRunAtOnceAsItHasThreads) {
  constexpr int kThreads = 4;
  Stream stream = team_of(kThreads);
  std::latch all(kThreads);  // Each task waits for all others: one thread would never end.
  for (int i = 0; i < kThreads; ++i) stream.enqueue([&](StreamRef) { all.arrive_and_wait(); });
  stream.synchronize();
}

TEST(TeamStreamTest, NoMoreThanItsThreads) {
  Stream stream = team_of(3);
  std::atomic<int> running = 0, most = 0;
  for (int i = 0; i < 60; ++i) {
    stream.enqueue([&](StreamRef) {
      int seen = most, now = ++running;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      sleep_us(200);
      --running;
    });
  }
  stream.synchronize();
  EXPECT_LE(most, 3);
  EXPECT_GE(most, 2);
}

// Tasks take random times, so they end in another order than they began.
TEST(TeamStreamTest, AnEventHappensWhenAllTasksBeforeItHaveEnded) {
  Rng rng{20261127};
  for (int round = 0; round < 50; ++round) {
    Stream stream = team_of(4);
    const auto before = static_cast<int>(rng.below(12)), after = static_cast<int>(rng.below(6));
    std::atomic<int> ended = 0;
    for (int i = 0; i < before; ++i) {
      stream.enqueue([&, us = static_cast<int>(rng.below(300))](StreamRef) {
        sleep_us(us);
        ++ended;
      });
    }
    const Event event = stream.record();
    for (int i = 0; i < after; ++i) stream.enqueue([](StreamRef) { sleep_us(50); });
    event.wait();
    ASSERT_GE(ended, before) << "round " << round;
    stream.synchronize();
  }
}

TEST(TeamStreamTest, WorkThatComesAfterAWaitBeginsBehindTheEvent) {
  Stream stream = team_of(3);
  const auto gate = std::make_shared<HostEvent>();
  std::atomic<bool> open = false;
  std::atomic<int> early = 0, ran = 0;
  stream.enqueue([&](StreamRef) { ++ran; });
  stream.wait(Event(gate));
  for (int i = 0; i < 8; ++i) {
    stream.enqueue([&](StreamRef) {
      if (!open) ++early;
      ++ran;
    });
  }
  sleep_us(5000);
  EXPECT_LE(ran, 1);
  open = true;
  gate->set();
  stream.synchronize();
  EXPECT_EQ(early, 0);
  EXPECT_EQ(ran, 9);
}

TEST(TeamStreamTest, DoneComesAfterItsTaskAndMayEnqueueMore) {
  std::atomic<int> tasks = 0, dones = 0;
  {
    Stream stream = team_of(3);
    for (int i = 0; i < 40; ++i) {
      const auto began = std::make_shared<std::atomic<bool>>(false);
      stream.enqueue(
          [&, began](StreamRef) {
            *began = true;
            ++tasks;
          },
          [&, began](const Completion& completion) {
            EXPECT_TRUE(*began);
            EXPECT_EQ(completion.error, nullptr);
            if (++dones <= 20) stream.enqueue([&](StreamRef) { ++tasks; });
          });
    }
    while (dones < 40) sleep_us(100);
  }  // The end of the stream finishes the enqueued tasks.
  EXPECT_EQ(tasks, 60);
}

TEST(TeamStreamTest, AnErrorGoesToDoneOrToSynchronizeOnce) {
  Stream stream = team_of(2);
  std::exception_ptr told;
  stream.enqueue([](StreamRef) { throw std::runtime_error("to done"); },
                 [&](const Completion& completion) { told = completion.error; });
  stream.synchronize();
  EXPECT_NE(told, nullptr);
  stream.enqueue([](StreamRef) { throw std::runtime_error("to nobody"); });
  EXPECT_THAT([&] { stream.synchronize(); }, ThrowsMessage<std::runtime_error>("to nobody"));
  stream.synchronize();
}

TEST(TeamStreamTest, SynchronizeInATaskIsRefused) {
  Stream stream = team_of(2);
  stream.enqueue([&](StreamRef) { stream.synchronize(); });
  EXPECT_THAT([&] { stream.synchronize(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("in a task of the same stream")));
}

TEST(TeamStreamTest, ManyThreadsMayUseIt) {
  Stream stream = team_of(3);
  std::atomic<int> ran = 0;
  std::vector<std::thread> users;
  for (int u = 0; u < 4; ++u) {
    users.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        stream.enqueue([&](StreamRef) { ++ran; });
        if (i % 37 == 0) stream.record().wait();
      }
    });
  }
  for (std::thread& user : users) user.join();
  stream.synchronize();
  EXPECT_EQ(ran, 800);
}

}  // namespace
}  // namespace sluiceway::test
