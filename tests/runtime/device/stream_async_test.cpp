// Streams that run beside the caller, on every device: independence, chains of waits, and use from
// many threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/backend.h"
#include "tests/support/stream_work.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;

class StreamAsyncTest : public testing::TestWithParam<DeviceId> {
 protected:
  static Stream make(std::string name) { return Stream::owned(GetParam(), {std::move(name)}); }
};

INSTANTIATE_TEST_SUITE_P(Devices, StreamAsyncTest, testing::ValuesIn(built_devices()), device_name);

TEST_P(StreamAsyncTest, EnqueueReturnsBeforeTheTaskRan) {
  Stream stream = make("async");
  Gate gate(GetParam());
  gate.hold(stream);
  bool ran = false;
  stream.enqueue(task_of([&] { ran = true; }));
  const Event event = stream.record();
  EXPECT_FALSE(event.happened());  // An enqueue() that waited would never have returned.
  gate.open();
  stream.synchronize();
  EXPECT_TRUE(ran);
}

TEST_P(StreamAsyncTest, StreamsRunSideBySide) {
  Stream first = make("first");
  Stream second = make("second");
  for (const auto& [held, free] : {std::pair{&first, &second}, {&second, &first}}) {
    Gate gate(GetParam());
    gate.hold(*held);
    const Event event = held->record();
    bool ran = false;
    free->enqueue(task_of([&] { ran = true; }));
    free->synchronize();
    EXPECT_TRUE(ran);
    EXPECT_FALSE(event.happened());
    gate.open();
    held->synchronize();
  }
}

TEST(HostStreamAsyncTest, SynchronizeInItsOwnTaskIsRefusedInsteadOfHanging) {
  Stream stream = Stream::host({"self"});
  stream.enqueue([&](StreamRef) { stream.synchronize(); });
  EXPECT_THAT([&] { stream.synchronize(); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr(
                                                 "was called in a task of the same stream")));
}

// Each stream waits for the one before it, and all waits are enqueued before the first stream
// starts: every stream is blocked in a wait while the next one waits for it.
TEST_P(StreamAsyncTest, ChainOfWaitingStreamsUnwindsInOrder) {
  constexpr int kStreams = 32;
  std::vector<int> order;
  std::vector<Stream> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(make("chain"));
  Gate gate(GetParam());
  gate.hold(streams[0]);
  std::vector<Event> events = {streams[0].record()};  // Destroying one may wait for the device.
  for (int i = 1; i < kStreams; ++i) {
    Stream& stream = streams[static_cast<std::size_t>(i)];
    stream.wait(events.back());
    stream.enqueue(task_of([&order, i] { order.push_back(i); }));
    events.push_back(stream.record());
  }
  EXPECT_FALSE(events.back().happened());
  gate.open();
  events.back().wait();
  std::vector<int> expected(kStreams - 1);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(order, expected);
}

TEST_P(StreamAsyncTest, TwoStreamsMayWaitForEachOtherInTurn) {
  Stream left = make("left");
  Stream right = make("right");
  std::vector<int> order;
  for (int i = 0; i < 200; i += 2) {
    left.enqueue(task_of([&order, i] { order.push_back(i); }));
    right.wait(left.record());
    right.enqueue(task_of([&order, i] { order.push_back(i + 1); }));
    left.wait(right.record());
  }
  left.synchronize();
  std::vector<int> expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST_P(StreamAsyncTest, DestroyedWhileItWaitsForAnotherStreamItFinishesAfterwards) {
  Stream other = make("other");
  bool ran = false;
  {
    Stream waiting = make("waiting");
    other.enqueue(task_of([] { sleep_ms(20); }));
    waiting.wait(other.record());
    waiting.enqueue(task_of([&] { ran = true; }));
  }
  EXPECT_TRUE(ran);
}

TEST_P(StreamAsyncTest, EventOfADestroyedStreamCanBeWaitedFor) {
  Event event;
  {
    Stream gone = make("gone");
    gone.enqueue(task_of([] { sleep_ms(5); }));
    event = gone.record();
  }
  Stream stream = make("stream");
  stream.wait(event);
  stream.synchronize();
}

TEST_P(StreamAsyncTest, ManyThreadsMayUseOneStream) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 250;
  Stream stream = make("shared");
  int ran = 0;  // Not atomic: they run one after another.
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTasks; ++i) stream.enqueue(task_of([&] { ++ran; }));
      stream.record().wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  stream.synchronize();
  EXPECT_EQ(ran, kThreads * kTasks);
}

}  // namespace
}  // namespace sluiceway::test
