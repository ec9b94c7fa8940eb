// Lanes of any number and depth, several payloads per key, and hops that finish elsewhere.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/schedule/executor.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

// Requests that a disk has accepted, and that the test completes.
class Requests {
 public:
  Hop::Start start(int layer) {
    return [this, layer](StreamRef, HopDone done) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(layer);
      waiting_.emplace(layer, std::move(done));
      changed_.notify_all();
    };
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return accepted_.size() >= count; });
  }
  std::vector<int> accepted() const {
    const std::lock_guard lock(mutex_);
    return accepted_;
  }
  // Takes a request out, so that it is destroyed unless the caller keeps it.
  HopDone take(int layer) {
    const std::lock_guard lock(mutex_);
    auto node = waiting_.extract(layer);
    return std::move(node.mapped());
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> accepted_;
  std::map<int, HopDone> waiting_;
};

// Returns lanes for a disk of some depth in front of a host lane.
std::vector<LaneConfig> disk_and_host(int depth) {
  return {{.name = "disk", .depth = depth}, {.name = "host"}};
}

class ExecutorHopsTest : public testing::TestWithParam<StreamKind> {
 protected:
  // Makes a payload whose disk hop is finished by `requests`.
  Payload read(LanesFixture& f, int layer) {
    Payload p = f.payload(layer);
    p.hops[0].run = nullptr;
    p.hops[0].start = requests.start(layer);
    return p;
  }
  Requests requests;
};

// I2
TEST_P(ExecutorHopsTest, ALaneHasAsManyHopsInFlightAsItsDepthAndFillsItByRank) {
  LanesFixture f(7, Order::kEdf, GetParam(), disk_and_host(3), LanePlan{});
  for (const int layer : {6, 5, 4, 3, 2, 1}) f.executor->submit(read(f, layer));
  requests.wait_for(3);
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(requests.accepted(), ElementsAre(6, 5, 4));
  requests.take(5)();  // Completions come in any order.
  requests.wait_for(4);
  EXPECT_THAT(requests.accepted(), ElementsAre(6, 5, 4, 1));
  f.executor->wait(5);
  EXPECT_THAT(f.log.layers_in(1), ElementsAre(5));
  requests.take(1)();
  requests.wait_for(5);
  for (const int layer : {6, 4, 2}) requests.take(layer)();
  requests.wait_for(6);
  requests.take(3)();
  f.executor->drain();
  EXPECT_THAT(requests.accepted(), ElementsAre(6, 5, 4, 1, 2, 3));
  EXPECT_THAT(f.log.layers_in(1), UnorderedElementsAre(1, 2, 3, 4, 5, 6));
}

// I1
TEST_P(ExecutorHopsTest, AHopMayFinishOnAnotherThread) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  f.executor->submit(read(f, 0));
  requests.wait_for(1);
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(f.log.entries(), IsEmpty());
  std::thread disk([&] { requests.take(0)(); });
  f.executor->wait(0);
  EXPECT_THAT(f.log.layers_in(1), ElementsAre(0));
  disk.join();
}

// I1: a hop is not finished before start() has returned, even if HopDone was called.
TEST_P(ExecutorHopsTest, AHopMayFinishInsideStart) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  std::size_t seen_in_start = 7;
  Payload p = f.payload(0);
  p.hops[0].run = nullptr;
  p.hops[0].start = [&](StreamRef, HopDone done) {
    done();
    std::this_thread::sleep_for(milliseconds(5));
    seen_in_start = f.log.entries().size();
  };
  f.executor->submit(std::move(p));
  f.executor->wait(0);
  EXPECT_EQ(seen_in_start, 0U);
  EXPECT_THAT(f.log.layers_in(1), ElementsAre(0));
}

// I6
TEST_P(ExecutorHopsTest, AHopMayFinishWithAnError) {
  LanesFixture f(2, Order::kEdf, GetParam(), disk_and_host(2), LanePlan{});
  f.executor->submit(read(f, 1));
  f.executor->submit(read(f, 0));
  requests.wait_for(2);
  requests.take(1)(std::make_exception_ptr(IoError("read: cannot", 5, "arena.bin", 4096)));
  std::thread disk([&] {
    std::this_thread::sleep_for(milliseconds(10));
    requests.take(0)();  // Its request is in flight, so the error waits for it.
  });
  try {
    f.executor->drain();
    ADD_FAILURE() << "drain() returned";
  } catch (const IoError& e) {
    EXPECT_STREQ(e.what(), "executor: lane disk, payload layer1: read: cannot");
    EXPECT_EQ(e.error_number(), 5);
  }
  disk.join();
  EXPECT_THAT(f.log.entries(), IsEmpty());
}

// I6
TEST_P(ExecutorHopsTest, AHopDoneThatNobodyCanCallAnyMoreIsAnError) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  Payload p = f.payload(0);
  p.hops[0].run = nullptr;
  p.hops[0].start = [](StreamRef, const HopDone&) {};
  f.executor->submit(std::move(p));
  EXPECT_THAT([&] { f.executor->drain(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("executor: lane disk, payload layer0: HopDone"),
                                         HasSubstr("without a call"))));
}

// I6
TEST_P(ExecutorHopsTest, WhatStartThrowsIsTheErrorOfItsHop) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  Payload p = f.payload(0);
  p.hops[0].run = nullptr;
  p.hops[0].start = [](StreamRef, const HopDone&) { throw Timeout("disk: no answer"); };
  f.executor->submit(std::move(p));
  EXPECT_THAT([&] { f.executor->drain(); },
              ThrowsMessage<Timeout>("executor: lane disk, payload layer0: disk: no answer"));
}

TEST_P(ExecutorHopsTest, OnlyTheFirstCallOfHopDoneCounts) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  f.executor->submit(read(f, 0));
  requests.wait_for(1);
  const HopDone done = requests.take(0);
  const HopDone same = done;
  done();
  same(std::make_exception_ptr(Error("late")));
  f.executor->drain();
  EXPECT_THAT(f.log.layers_in(1), ElementsAre(0));
}

// I4
TEST_P(ExecutorHopsTest, RecallWaitsForTheRequestThatIsInFlight) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  Payload p = read(f, 0);
  p.hold_before = 1;
  f.executor->submit(std::move(p));
  requests.wait_for(1);
  std::atomic<bool> completed = false;
  std::thread disk([&] {
    std::this_thread::sleep_for(milliseconds(20));
    completed = true;
    requests.take(0)();
  });
  EXPECT_TRUE(f.executor->recall(0));
  EXPECT_TRUE(completed);
  disk.join();
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.entries(), IsEmpty());
}

// I5
TEST_P(ExecutorHopsTest, WhatAHopCapturedIsGoneBeforeThePayloadMovesOn) {
  LanesFixture f(1, Order::kEdf, GetParam(), disk_and_host(1), LanePlan{});
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = captured;
  bool gone = false;
  Payload p = f.payload(0);
  p.hops[0].run = nullptr;
  p.hops[0].start = [captured = std::move(captured)](StreamRef, const HopDone& done) { done(); };
  p.hops[1].run = [&](StreamRef) { gone = watched.expired(); };
  f.executor->submit(std::move(p));
  f.executor->drain();
  EXPECT_TRUE(gone);
}

INSTANTIATE_TEST_SUITE_P(Executor, ExecutorHopsTest,
                         testing::Values(StreamKind::kWorkers, StreamKind::kInline),
                         [](const auto& param) {
                           return param.param == StreamKind::kWorkers ? "workers" : "inline";
                         });

// I4
TEST(ExecutorKeyTest, RecallTakesEveryPayloadOfTheKeyThatHasNotPassedItsHold) {
  LanesFixture f(2);
  Latch latch;
  Payload passed = f.blocked_payload(1, kHost, latch);
  passed.hold_before = kHost;
  f.executor->submit(std::move(passed));
  f.executor->release();
  latch.wait_for_arrival();
  for (int i = 0; i < 3; ++i) f.executor->submit(f.payload(1, kHost));
  f.executor->submit(f.payload(0, kHost));
  EXPECT_TRUE(f.executor->recall(1));
  EXPECT_TRUE(f.executor->busy(1));  // The payload of the previous step.
  EXPECT_THAT([&] { f.executor->recall(1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("before its hold (host)")));
  latch.open();
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.layers_in(kHost), ElementsAre(1, 0));
  EXPECT_FALSE(f.executor->busy(1));
}

// I2
TEST(ExecutorKeyTest, PayloadsOfOneKeyGoByTheirDeadlinesAndThenAsTheyCame) {
  LanesFixture f(2);
  Latch latch;
  f.executor->submit(f.blocked_payload(1, kD2h, latch));
  latch.wait_for_arrival();
  std::vector<std::pair<std::uint64_t, int>> served;  // Deadline, number.
  int number = 0;
  for (const std::uint64_t deadline : {7U, 3U, 7U, 3U, 5U}) {
    Payload p = f.payload(0);
    p.deadline = deadline;
    p.hops[kD2h].run = [&served, deadline, mine = number++](StreamRef) {
      served.emplace_back(deadline, mine);
    };
    f.executor->submit(std::move(p));
  }
  latch.open();
  f.executor->drain();
  using Served = std::pair<std::uint64_t, int>;
  EXPECT_THAT(served,
              ElementsAre(Served{3, 1}, Served{3, 3}, Served{5, 4}, Served{7, 0}, Served{7, 2}));
}

class LaneListTest : public testing::TestWithParam<std::tuple<int, Order, StreamKind>> {
 protected:
  int lane_count() const { return std::get<0>(GetParam()); }
  LanesFixture make(int layers) const {
    std::vector<LaneConfig> lanes;
    for (int i = 0; i < lane_count(); ++i) {
      lanes.push_back({.name = "lane" + std::to_string(i), .depth = 1 + i % 2});
    }
    const LanePlan plan{.gather_before = lane_count() / 2, .device_lane = lane_count() - 1};
    return LanesFixture(layers, std::get<1>(GetParam()), std::get<2>(GetParam()), lanes, plan);
  }
};

class LaneListGateTest : public LaneListTest {};

// I1, I3
TEST_P(LaneListTest, PayloadsPassTheirLanesInTurnAndStopAtTheirHold) {
  LanesFixture f = make(19);
  const LaneId hold = lane_count() - 1;
  for (int layer = 18; layer >= 0; --layer) f.executor->submit(f.payload(layer, hold));
  std::this_thread::sleep_for(milliseconds(2));
  EXPECT_THAT(f.log.layers_in(hold), IsEmpty());
  f.executor->release();
  f.executor->drain();
  std::vector<LaneId> all;
  for (LaneId lane = 0; lane < lane_count(); ++lane) all.push_back(lane);
  for (int layer = 0; layer < 19; ++layer) EXPECT_EQ(f.log.lanes_of(layer), all);
  EXPECT_EQ(f.executor->last_seconds(3).size(), all.size());
  EXPECT_THAT(f.executor->take_use().payloads, testing::Each(19));
}

// I3: the gate is at its lane even for a payload without a hop in that lane.
TEST_P(LaneListGateTest, TheBarrierGathersBeforeItsLane) {
  LanesFixture f = make(5);
  const LaneId gate = lane_count() / 2;
  for (int layer = 4; layer >= 0; --layer) {
    Payload p = f.payload(layer);
    if (layer == 2 && gate + 1 < lane_count()) drop_hop(p, gate);
    f.executor->submit(std::move(p));
  }
  f.executor->release();
  f.executor->drain();
  int left_before = 5 * gate;
  for (const auto& [layer, lane] : f.log.entries()) {
    if (lane < gate) {
      --left_before;
    } else {
      EXPECT_EQ(left_before, 0) << "layer " << layer << " in lane " << lane;
    }
  }
}

std::string list_name(const testing::TestParamInfo<std::tuple<int, Order, StreamKind>>& param) {
  const auto [lanes, order, kind] = param.param;
  return std::to_string(lanes) + "_" + std::string(to_string(order)) +
         (kind == StreamKind::kWorkers ? "_workers" : "_inline");
}

INSTANTIATE_TEST_SUITE_P(
    Executor, LaneListTest,
    testing::Combine(testing::Values(2, 6),
                     testing::Values(Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf),
                     testing::Values(StreamKind::kWorkers, StreamKind::kInline)),
    list_name);

INSTANTIATE_TEST_SUITE_P(Executor, LaneListGateTest,
                         testing::Combine(testing::Values(2, 6), testing::Values(Order::kBarrier),
                                          testing::Values(StreamKind::kWorkers,
                                                          StreamKind::kInline)),
                         list_name);

}  // namespace
}  // namespace sluiceway::test
