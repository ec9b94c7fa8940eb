// Streams with a thread of their own: independence, chains of waits, and use from many threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(StreamAsyncTest, EnqueueReturnsBeforeTheTaskRan) {
  std::promise<void> opened;
  Stream stream = Stream::host({"async"});
  stream.enqueue([&](StreamRef) { opened.get_future().wait(); });
  const Event event = stream.record();
  EXPECT_FALSE(event.happened());  // A task run by enqueue() would never have returned.
  opened.set_value();
  stream.synchronize();
}

TEST(StreamAsyncTest, StreamsRunSideBySide) {
  Stream first = Stream::host({"first"});
  Stream second = Stream::host({"second"});
  std::promise<void> ping;
  std::promise<void> pong;
  first.enqueue([&](StreamRef) {
    ping.set_value();
    pong.get_future().wait();
  });
  second.enqueue([&](StreamRef) {
    ping.get_future().wait();
    pong.set_value();
  });
  first.synchronize();
  second.synchronize();
}

TEST(StreamAsyncTest, SynchronizeInItsOwnTaskIsRefusedInsteadOfHanging) {
  Stream stream = Stream::host({"self"});
  stream.enqueue([&](StreamRef) { stream.synchronize(); });
  EXPECT_THAT([&] { stream.synchronize(); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr(
                                                 "synchronize() in a task of the same stream")));
}

// Each stream waits for the one before it, and the waits are enqueued before the first stream
// has started: every stream is blocked in a wait while the next one waits for it.
TEST(StreamAsyncTest, ChainOfWaitingStreamsUnwindsInOrder) {
  constexpr int kStreams = 32;
  std::promise<void> opened;
  std::vector<int> order;
  std::vector<Stream> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(Stream::host({"chain"}));
  streams[0].enqueue([&](StreamRef) { opened.get_future().wait(); });
  Event previous = streams[0].record();
  for (int i = 1; i < kStreams; ++i) {
    Stream& stream = streams[static_cast<std::size_t>(i)];
    stream.wait(previous);
    stream.enqueue([&order, i](StreamRef) { order.push_back(i); });
    previous = stream.record();
  }
  EXPECT_FALSE(previous.happened());
  opened.set_value();
  previous.wait();
  std::vector<int> expected(kStreams - 1);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(order, expected);
}

TEST(StreamAsyncTest, TwoStreamsMayWaitForEachOtherInTurn) {
  Stream left = Stream::host({"left"});
  Stream right = Stream::host({"right"});
  std::vector<int> order;
  for (int i = 0; i < 200; i += 2) {
    left.enqueue([&order, i](StreamRef) { order.push_back(i); });
    right.wait(left.record());
    right.enqueue([&order, i](StreamRef) { order.push_back(i + 1); });
    left.wait(right.record());
  }
  left.synchronize();
  std::vector<int> expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(StreamAsyncTest, DestroyedWhileItWaitsForAnotherStreamItFinishesAfterwards) {
  Stream other = Stream::host({"other"});
  bool ran = false;
  {
    Stream waiting = Stream::host({"waiting"});
    other.enqueue([](StreamRef) { sleep_ms(20); });
    waiting.wait(other.record());
    waiting.enqueue([&](StreamRef) { ran = true; });
  }
  EXPECT_TRUE(ran);
}

TEST(StreamAsyncTest, EventOfADestroyedStreamCanBeWaitedFor) {
  Event event;
  {
    Stream gone = Stream::host({"gone"});
    gone.enqueue([](StreamRef) { sleep_ms(5); });
    event = gone.record();
  }
  Stream stream = Stream::host({"stream"});
  stream.wait(event);
  stream.synchronize();
}

TEST(StreamAsyncTest, ManyThreadsMayUseOneStream) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 250;
  Stream stream = Stream::host({"shared"});
  int ran = 0;  // Not atomic: one worker runs them all.
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTasks; ++i) stream.enqueue([&](StreamRef) { ++ran; });
      stream.record().wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream.synchronize();
  EXPECT_EQ(ran, kThreads * kTasks);
}

}  // namespace
}  // namespace sluiceway::test
