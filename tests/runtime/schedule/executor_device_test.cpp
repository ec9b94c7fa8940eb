// Consecutive hops on one device: the next is handed over behind an event, and every invariant
// still holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/schedule/executor.h"
#include "tests/runtime/schedule/device_double.h"
#include "tests/runtime/schedule/lanes_fixture.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

// Three lanes, all on one device unless the test says otherwise: copy, apply, check.
constexpr LaneId kCopy = 0, kWork = 1, kCheck = 2;

class ExecutorDeviceTest : public testing::Test {
 protected:
  void make(int keys, Order order = Order::kEdf, LanePlan plan = {}) {
    while (streams.size() < 3) streams.push_back(DeviceDouble::stream(0));
    Executor::Config config =
        config_of({{.name = "copy"}, {.name = "work"}, {.name = "check"}}, plan, streams, keys);
    config.order = order;
    executor.emplace(std::move(config));
  }

  // Makes a payload with hops in lanes 0 to `lanes` - 1. `called` logs each task, `log` the work
  // that it launched.
  Payload payload(int key, int lanes = 2) {
    Payload p;
    p.key = key;
    p.deadline = static_cast<std::uint64_t>(key);
    p.name = "layer" + std::to_string(key);
    for (LaneId lane = 0; lane < lanes; ++lane) {
      p.hops.push_back({lane, [this, key, lane](StreamRef stream) {
                          called.add(key, lane);
                          DeviceDouble::launch(stream, [this, key, lane] { log.add(key, lane); });
                        }});
    }
    return p;
  }

  // Like payload(), but the work that its first task launched waits at `latch`.
  Payload blocked_payload(int key, Latch& latch, int lanes = 2) {
    Payload p = payload(key, lanes);
    p.hops[0].run = [this, key, &latch](StreamRef stream) {
      called.add(key, kCopy);
      DeviceDouble::launch(stream, [this, key, &latch] {
        latch.pass();
        log.add(key, kCopy);
      });
    };
    return p;
  }

  std::vector<Stream> streams;
  Log called, log;
  std::optional<Executor> executor;
};

// I1
TEST_F(ExecutorDeviceTest, TheNextHopIsHandedOverBehindAnEventOfTheOneBefore) {
  make(1);
  Latch latch;
  executor->submit(blocked_payload(0, latch, 3));
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy, kWork, kCheck));  // By the caller itself.
  latch.wait_for_arrival();
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(log.entries(), IsEmpty());
  EXPECT_TRUE(executor->busy(0));
  latch.open();
  executor->drain();
  EXPECT_THAT(log.lanes_of(0), ElementsAre(kCopy, kWork, kCheck));
}

// I2
TEST_F(ExecutorDeviceTest, ALaneIsFreeWhenTheDeviceHasDoneItsHopAndNotBefore) {
  make(3);
  Latch latch;
  executor->submit(blocked_payload(2, latch));
  executor->submit(payload(1));
  executor->submit(payload(0));
  EXPECT_THAT(called.layers_in(kCopy), ElementsAre(2));
  latch.open();
  executor->drain();
  EXPECT_THAT(called.layers_in(kCopy), ElementsAre(2, 0, 1));
  EXPECT_THAT(log.layers_in(kWork), ElementsAre(2, 0, 1));
}

// I3
TEST_F(ExecutorDeviceTest, AHoldBeforeTheNextHopHolds) {
  make(1);
  Payload p = payload(0);
  p.hold_before = 1;
  executor->submit(std::move(p));
  while (log.entries().empty()) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy));
  executor->release();
  executor->drain();
  EXPECT_THAT(log.lanes_of(0), ElementsAre(kCopy, kWork));
}

// I3
TEST_F(ExecutorDeviceTest, TheBarrierGathersWhatTheDeviceHasDone) {
  make(2, Order::kBarrier, {.gather_before = kWork});
  Latch latch;
  executor->submit(payload(1));
  executor->submit(blocked_payload(0, latch));
  executor->release();
  latch.wait_for_arrival();
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(called.layers_in(kWork), IsEmpty());
  latch.open();
  executor->drain();
  EXPECT_THAT(log.layers_in(kWork), ElementsAre(1, 0));
}

// I4
TEST_F(ExecutorDeviceTest, RecallWaitsForEveryHopOfTheDevice) {
  make(1);
  Latch latch;
  Payload p = blocked_payload(0, latch, 3);
  p.hold_before = 2;
  executor->submit(std::move(p));
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy, kWork));
  std::atomic<bool> opened = false;
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    opened = true;
    latch.open();
  });
  EXPECT_TRUE(executor->recall(0));
  EXPECT_TRUE(opened);
  EXPECT_THAT(log.lanes_of(0), ElementsAre(kCopy, kWork));
  opener.join();
  executor->release();
  executor->drain();
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy, kWork));
}

// I4: recall() takes out a payload that waits for its lane behind an event, once the event has
// happened.
TEST_F(ExecutorDeviceTest, RecallTakesOutWhatIsReadyBehindAnEvent) {
  make(2);
  Latch first, second;
  Payload ahead = payload(1, 2);
  ahead.hops.erase(ahead.hops.begin());
  ahead.hops[0].run = [&](StreamRef stream) {
    DeviceDouble::launch(stream, [&] { first.pass(); });
  };
  executor->submit(std::move(ahead));  // Fills the lane `work`.
  Payload p = blocked_payload(0, second, 3);
  p.hold_before = 2;
  executor->submit(std::move(p));
  second.wait_for_arrival();
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy));
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    second.open();
  });
  EXPECT_TRUE(executor->recall(0));
  opener.join();
  EXPECT_THAT(log.lanes_of(0), ElementsAre(kCopy));
  first.open();
  executor->release();
  executor->drain();
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy));
}

// I6
TEST_F(ExecutorDeviceTest, AnErrorOfTheHopBeforeFailsTheExecutorAfterBothHaveFinished) {
  make(2);
  Latch latch;
  auto captured = std::make_shared<int>(1);
  Payload p = payload(1);
  p.hops[0].run = [&latch, captured](StreamRef stream) {
    DeviceDouble::launch(stream, [&latch] { latch.pass(); });
    throw CudaError("copy: error 700");
  };
  executor->submit(std::move(p));
  EXPECT_THAT(called.layers_in(kWork), ElementsAre(1));
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(10));
    latch.open();
  });
  EXPECT_THAT([&] { executor->wait(1); },
              ThrowsMessage<CudaError>("executor: lane copy, payload layer1: copy: error 700"));
  EXPECT_THAT(log.layers_in(kWork), ElementsAre(1));  // It was in flight.
  EXPECT_EQ(captured.use_count(), 1);
  EXPECT_THAT([&] { executor->submit(payload(0)); }, ThrowsMessage<CudaError>(HasSubstr("700")));
  opener.join();
}

// I6
TEST_F(ExecutorDeviceTest, AStreamThatCannotWaitFailsTheHopThatWaits) {
  streams.push_back(DeviceDouble::stream(0));
  streams.push_back(DeviceDouble::stream(0, {.record = false, .wait = true}));
  make(1);
  Latch latch;  // While the first hop runs, the second must wait for its event.
  executor->submit(blocked_payload(0, latch));
  latch.open();
  EXPECT_THAT(
      [&] { executor->drain(); },
      ThrowsMessage<CudaError>("executor: lane work, payload layer0: wait: refused, error 9"));
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy));
}

// I1
TEST_F(ExecutorDeviceTest, AStreamThatCannotRecordIsWaitedForByTheHost) {
  streams.push_back(DeviceDouble::stream(0, {.record = true, .wait = false}));
  make(1);
  Latch latch;
  executor->submit(blocked_payload(0, latch));
  latch.wait_for_arrival();
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy));
  latch.open();
  executor->drain();
  EXPECT_THAT(log.lanes_of(0), ElementsAre(kCopy, kWork));
}

// I1
TEST_F(ExecutorDeviceTest, AnotherDeviceAndAHostStreamAreWaitedForByTheHost) {
  streams.push_back(DeviceDouble::stream(0));
  streams.push_back(DeviceDouble::stream(1));
  streams.push_back(Stream::host({.name = "check"}));
  make(1);
  Latch latch;
  Payload p = blocked_payload(0, latch);
  bool copied = false, worked = false;
  p.hops[1].run = [&](StreamRef stream) {
    copied = !log.layers_in(kCopy).empty();
    DeviceDouble::launch(stream, [&] { log.add(0, kWork); });
  };
  p.hops.push_back({kCheck, [&](StreamRef) { worked = !log.layers_in(kWork).empty(); }});
  executor->submit(std::move(p));
  latch.wait_for_arrival();
  latch.open();
  executor->drain();
  EXPECT_TRUE(copied);
  EXPECT_TRUE(worked);
}

// I8
TEST_F(ExecutorDeviceTest, AcquireReturnsWhenTheLastHopIsEnqueuedAndTheReaderWaitsOnTheDevice) {
  make(2);
  Stream reader = DeviceDouble::stream(0);
  Latch latch;
  executor->submit(blocked_payload(0, latch, 3));
  executor->acquire(0, reader);
  reader.enqueue([&](StreamRef ref) { DeviceDouble::launch(ref, [&] { log.add(99, kCheck); }); });
  EXPECT_TRUE(executor->moves(0));
  latch.wait_for_arrival();
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(log.entries(), IsEmpty());
  latch.open();
  reader.synchronize();
  EXPECT_THAT(log.layers_in(kCheck), ElementsAre(0, 99));
  executor->drain();
  EXPECT_FALSE(executor->moves(0));
}

// I8: the thread waits for work left to the host, the stream only for work that it received.
TEST_F(ExecutorDeviceTest, AcquireWaitsOnItsThreadForHopsOfTheHost) {
  streams.push_back(DeviceDouble::stream(0));
  streams.push_back(Stream::host({.name = "work"}));
  streams.push_back(DeviceDouble::stream(0));
  make(1);
  Stream reader = DeviceDouble::stream(0);
  Payload p = payload(0, 3);
  Latch latch;
  p.hops[1].run = [&](StreamRef) { latch.pass(); };
  executor->submit(std::move(p));
  latch.wait_for_arrival();
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy));
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(20));
    latch.open();
  });
  executor->acquire(0, reader);
  EXPECT_THAT(called.lanes_of(0), ElementsAre(kCopy, kCheck));
  reader.synchronize();
  EXPECT_THAT(log.layers_in(kCheck), ElementsAre(0));
  opener.join();
}

// I8: an interrupted wait can be repeated, and many payloads can have one end in a lane.
TEST_F(ExecutorDeviceTest, AcquireIsForEveryPayloadOfTheKey) {
  make(1);
  Stream reader = DeviceDouble::stream(0);
  Latch latch;
  executor->submit(payload(0, 3));
  executor->submit(blocked_payload(0, latch, 1));
  executor->submit(payload(0, 3));
  std::thread opener([&] {
    latch.wait_for_arrival();
    std::this_thread::sleep_for(milliseconds(20));
    latch.open();
  });
  executor->acquire(0, reader);
  reader.synchronize();
  EXPECT_THAT(log.layers_in(kCopy), ElementsAre(0, 0, 0));
  EXPECT_THAT(log.layers_in(kCheck), ElementsAre(0, 0));
  opener.join();
}

// I8
TEST_F(ExecutorDeviceTest, UnderTheBarrierAReaderWaitsForEveryKeyOfTheDevice) {
  make(2, Order::kBarrier, {.gather_before = kWork});
  Stream reader = DeviceDouble::stream(0);
  executor->submit(payload(1, 3));
  executor->submit(payload(0, 3));
  executor->release();
  executor->acquire(0, reader);
  reader.synchronize();
  EXPECT_THAT(log.layers_in(kCheck), ElementsAre(1, 0));
}

TEST_F(ExecutorDeviceTest, TheDeviceLaneIsBusyFromWhenTheHopBeforeHasFinished) {
  make(1, Order::kEdf, {.device_lane = kWork});
  Payload p = payload(0);
  const auto sleeps = [](int ms) {
    return [ms](StreamRef stream) {
      DeviceDouble::launch(stream, [ms] { std::this_thread::sleep_for(milliseconds(ms)); });
    };
  };
  p.hops[0].run = sleeps(120);
  p.hops[1].run = sleeps(60);
  const auto begin = std::chrono::steady_clock::now();  // Delays of this thread then count too.
  executor->submit(std::move(p));
  const double stall_s = executor->wait(0);
  const std::chrono::duration<double> blocked = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(stall_s, 0.060);
  EXPECT_LE(stall_s, blocked.count() - 0.050);
}

// I7: if each hand-over started the next from within, the stack would overflow here.
TEST_F(ExecutorDeviceTest, ADeviceThatIsDoneAtOnceRecursesNoDeeperThanThereAreLanes) {
  constexpr int kMany = 20011;
  for (int i = 0; i < 3; ++i) streams.push_back(Stream::over(std::make_unique<InstantDevice>()));
  make(kMany);
  for (int key = 0; key < kMany; ++key) {
    Payload p;
    p.key = key;
    p.deadline = static_cast<std::uint64_t>(key);
    for (const LaneId lane : {kCopy, kWork, kCheck}) {
      p.hops.push_back({lane, [this, key, lane](StreamRef) { log.add(key, lane); }});
    }
    p.hold_before = 0;
    executor->submit(std::move(p));
  }
  executor->release();
  executor->drain();
  EXPECT_EQ(log.entries().size(), 3U * kMany);
  EXPECT_THAT(log.lanes_of(11), ElementsAre(kCopy, kWork, kCheck));
}

// I1, I3, I4 and I7, at random.
TEST_F(ExecutorDeviceTest, InvariantsHoldOverManySteps) {
  constexpr int kKeys = 11;
  Rng rng(97);
  make(kKeys);
  int expected = 0;
  for (int step = 0; step < 60; ++step) {
    for (int key = kKeys - 1; key >= 0; --key) {
      Payload p = payload(key, 3);
      if (rng.below(4) == 0) drop_hop(p, static_cast<LaneId>(rng.below(3)));
      if (rng.below(2) == 0) p.hold_before = static_cast<std::size_t>(rng.below(3));
      const bool take_back = p.hold_before && rng.below(4) == 0;
      const std::size_t hops = p.hops.size();
      const std::size_t before = log.lanes_of(key).size();
      const std::size_t hold = p.hold_before.value_or(hops);
      executor->submit(std::move(p));
      if (take_back) {
        EXPECT_TRUE(executor->recall(key));
        const std::size_t ran = log.lanes_of(key).size() - before;
        EXPECT_LE(ran, hold);
        expected += static_cast<int>(ran);
      } else {
        expected += static_cast<int>(hops);
      }
    }
    executor->release();
    for (int key = 0; key < kKeys; ++key) executor->wait(key);
  }
  EXPECT_EQ(log.entries().size(), static_cast<std::size_t>(expected));
  for (int key = 0; key < kKeys; ++key) EXPECT_EQ(log.lanes_of(key), called.lanes_of(key));
}

}  // namespace
}  // namespace sluiceway::test
