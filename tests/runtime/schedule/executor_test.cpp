// The promises of an executor over successive steps: lanes, orders, holds, waits.
#include "runtime/schedule/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "kernels/base/error.h"
#include "runtime/trace/trace.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

void expect_every_lane_once(const LanesFixture& f) {
  for (int layer = 0; layer < f.layer_count; ++layer) {
    EXPECT_THAT(f.log.lanes_of(layer), ElementsAre(kD2h, kHost, kH2d, kApply)) << "layer " << layer;
  }
}

class ExecutorOrderTest : public testing::TestWithParam<std::tuple<Order, StreamKind>> {};

// I1
TEST_P(ExecutorOrderTest, PayloadsPassEachLaneOnceAndInTurn) {
  LanesFixture f(37, std::get<0>(GetParam()), std::get<1>(GetParam()));
  for (int layer = 36; layer >= 0; --layer) f.executor->submit(f.payload(layer));
  f.executor->release();
  f.executor->drain();
  expect_every_lane_once(f);
  for (int layer = 0; layer < 37; ++layer) EXPECT_FALSE(f.executor->busy(layer));
}

TEST_P(ExecutorOrderTest, LanesWithoutTasksArePassedAtOnce) {
  LanesFixture f(3, std::get<0>(GetParam()), std::get<1>(GetParam()));
  for (const int layer : {2, 1, 0}) {
    Payload p = f.payload(layer);
    drop_hop(p, kD2h);
    if (layer == 1) p.hops.clear();
    if (layer == 2) drop_hop(p, kApply);
    f.executor->submit(std::move(p));
  }
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.lanes_of(0), ElementsAre(kHost, kH2d, kApply));
  EXPECT_THAT(f.log.lanes_of(1), IsEmpty());
  EXPECT_THAT(f.log.lanes_of(2), ElementsAre(kHost, kH2d));
}

// I3
TEST_P(ExecutorOrderTest, HeldPayloadsStopAtTheirHoldUntilRelease) {
  LanesFixture f(5, std::get<0>(GetParam()), std::get<1>(GetParam()));
  for (int layer = 4; layer >= 0; --layer) f.executor->submit(f.payload(layer, kHost));
  while (f.log.entries().size() < 5) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(f.log.layers_in(kD2h).size(), 5U);
  EXPECT_THAT(f.log.layers_in(kHost), IsEmpty());
  for (int layer = 0; layer < 5; ++layer) EXPECT_TRUE(f.executor->busy(layer));
  f.executor->release();
  f.executor->drain();
  expect_every_lane_once(f);
}

INSTANTIATE_TEST_SUITE_P(
    Executor, ExecutorOrderTest,
    testing::Combine(testing::Values(Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf),
                     testing::Values(StreamKind::kWorkers, StreamKind::kInline)),
    [](const auto& param) {
      const bool workers = std::get<1>(param.param) == StreamKind::kWorkers;
      return std::string(to_string(std::get<0>(param.param))) + (workers ? "_workers" : "_inline");
    });

// Layer 9 occupies d2h while 8 .. 0 arrive, so d2h then serves them purely by the order.
std::vector<int> served(Order order, std::uint64_t transition = 0) {
  LanesFixture f(10, order);
  f.executor->set_transition(transition);
  Latch latch;
  f.executor->submit(f.blocked_payload(9, kD2h, latch));
  latch.wait_for_arrival();
  for (int layer = 8; layer >= 0; --layer) f.executor->submit(f.payload(layer));
  latch.open();
  f.executor->release();
  f.executor->drain();
  return f.log.layers_in(kD2h);
}

// I2
TEST(ExecutorTest, FirstComeFirstServedKeepsArrivalOrder) {
  EXPECT_THAT(served(Order::kFcfs), ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  EXPECT_THAT(served(Order::kBarrier), ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

// I2
TEST(ExecutorTest, EarliestDeadlineFirstServesTheLayerNeededFirst) {
  EXPECT_THAT(served(Order::kEdf), ElementsAre(9, 0, 1, 2, 3, 4, 5, 6, 7, 8));
}

// I2
TEST(ExecutorTest, PaperOrderServesLastComeFirstBelowTheTransitionLayer) {
  EXPECT_THAT(served(Order::kPaper, 4), ElementsAre(9, 0, 1, 2, 3, 8, 7, 6, 5, 4));
  EXPECT_THAT(served(Order::kPaper, 0), ElementsAre(9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}

// I2
TEST(ExecutorTest, PayloadsOfAnEarlierStepGoFirst) {
  LanesFixture f(4, Order::kEdf);
  Latch latch;
  f.executor->submit(f.blocked_payload(3, kD2h, latch));
  latch.wait_for_arrival();
  f.executor->submit(f.payload(2));
  f.executor->release();
  f.executor->submit(f.payload(0));
  f.executor->submit(f.payload(1));
  latch.open();
  f.executor->drain();
  EXPECT_THAT(f.log.layers_in(kD2h), ElementsAre(3, 2, 0, 1));
}

// I3
TEST(ExecutorTest, PayloadsSubmittedAfterReleaseWaitForTheNextRelease) {
  LanesFixture f(2);
  f.executor->submit(f.payload(1, kHost));
  f.executor->release();
  f.executor->submit(f.payload(0, kHost));
  f.executor->wait(1);
  EXPECT_TRUE(f.executor->busy(0));
  EXPECT_THAT(f.log.layers_in(kHost), ElementsAre(1));
  f.executor->release();
  f.executor->drain();
  EXPECT_THAT(f.log.layers_in(kHost), ElementsAre(1, 0));
}

// I3
TEST(ExecutorTest, ReleasePassesPayloadsThatReachTheirHoldLater) {
  LanesFixture f(1);
  Latch latch;
  Payload p = f.blocked_payload(0, kD2h, latch);
  p.hold_before = kApply;
  f.executor->submit(std::move(p));
  f.executor->release();
  latch.open();
  f.executor->drain();
  expect_every_lane_once(f);
}

// I3
TEST(ExecutorTest, BarrierStartsHostWorkWhenAllPayloadsAreOnTheHost) {
  LanesFixture f(5, Order::kBarrier);
  Latch latch;
  for (const int layer : {4, 3, 2, 1}) f.executor->submit(f.payload(layer));
  f.executor->submit(f.blocked_payload(0, kD2h, latch));
  f.executor->release();
  latch.wait_for_arrival();
  EXPECT_THAT(f.log.layers_in(kHost), IsEmpty());
  latch.open();
  f.executor->drain();
  const std::vector<Log::Entry> entries = f.log.entries();
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(entries[i].second, kD2h);
  EXPECT_EQ(entries[5].second, kHost);
}

// I3
TEST(ExecutorTest, BarrierWaitsForTheWholeStepEvenWhenItsD2hIsIdle) {
  LanesFixture f(2, Order::kBarrier);
  f.executor->submit(f.payload(1));
  while (f.log.entries().empty()) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_THAT(f.log.layers_in(kHost), IsEmpty());
  f.executor->submit(f.payload(0));
  f.executor->release();
  f.executor->wait(1);  // For all layers.
  EXPECT_FALSE(f.executor->busy(0));
  expect_every_lane_once(f);
}

// I3
TEST(ExecutorTest, BarrierIgnoresPayloadsOfTheNextStepInD2h) {
  LanesFixture f(2, Order::kBarrier);
  Latch latch;
  f.executor->submit(f.payload(1));
  f.executor->release();
  f.executor->submit(f.blocked_payload(0, kD2h, latch));
  f.executor->wait(1);
  EXPECT_THAT(f.log.lanes_of(1), ElementsAre(kD2h, kHost, kH2d, kApply));
  latch.open();
  f.executor->release();
  f.executor->drain();
}

TEST(ExecutorTest, TraceGetsARangeForEachTask) {
  Trace trace;
  trace.enable(true);
  LanesFixture f(1);
  std::vector<LaneConfig> lanes = four_lanes();
  for (LaneConfig& lane : lanes) lane.trace_row = trace.add_row(lane.name);
  Executor::Config config = config_of(lanes, kFourLanes, f.streams, 1);
  config.trace = &trace;
  Executor executor(config);
  executor.submit(f.payload(0));
  executor.drain();
  EXPECT_EQ(trace.range_count(), 4U);
}

TEST(ExecutorTest, RejectsKeysThatDoNotExist) {
  LanesFixture f(3);
  EXPECT_THAT([&] { f.executor->submit(f.payload(3)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("key is 3, expected 0 to 2")));
  EXPECT_THAT([&] { f.executor->wait(-1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("key is -1, expected 0 to 2")));
  EXPECT_THAT(f.log.entries(), IsEmpty());
}

TEST(ExecutorTest, RejectsHopsWithoutALaneOutOfTurnOrWithoutExactlyOneTask) {
  LanesFixture f(1);
  const auto refused = [&](const auto& change, const char* text) {
    Payload p = f.payload(0);
    change(p);
    EXPECT_THAT([&] { f.executor->submit(std::move(p)); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
    EXPECT_FALSE(f.executor->busy(0));
  };
  refused([](Payload& p) { p.hops[3].lane = 4; }, "lane 4 after one in lane 2, expected ascending");
  refused([](Payload& p) { p.hops[1].lane = 0; }, "lane 0 after one in lane 0, expected ascending");
  refused([](Payload& p) { p.hops[0].lane = -1; }, "below 4");
  refused([](Payload& p) { p.hops[2].run = nullptr; }, "neither of run and start in lane 2");
  refused([](Payload& p) { p.hops[2].start = [](StreamRef, HopDone) {}; }, "both of run and start");
  refused([](Payload& p) { p.hold_before = 5; }, "held before hop 5, expected at most 4");
}

TEST(ExecutorTest, RejectsALaneWithoutAStreamOrADepth) {
  LanesFixture f(1);
  Executor::Config config = config_of(four_lanes(), kFourLanes, f.streams, 1);
  config.lanes[3].depth = 0;
  EXPECT_THAT([&] { Executor{config}; },
              ThrowsMessage<InvalidArgument>(HasSubstr("lane apply has depth 0")));
  config.lanes[2].stream = nullptr;
  EXPECT_THAT([&] { Executor{config}; },
              ThrowsMessage<InvalidArgument>(HasSubstr("lane h2d has no stream")));
}

TEST(ExecutorTest, RejectsAPlanOfLanesThatDoNotExist) {
  LanesFixture f(1);
  const auto refuses = [&](const LanePlan& plan, const char* text) {
    const Executor::Config config = config_of(four_lanes(), plan, f.streams, 1);
    EXPECT_THAT([&] { Executor{config}; }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refuses({.gather_before = 4}, "gather_before is lane 4, expected 0 to 3");
  refuses({.device_lane = -1}, "device_lane is lane -1, expected 0 to 3");
}

// I5
TEST(ExecutorTest, DestructionDropsWhatIsHeldAndFinishesTheRest) {
  LanesFixture f(3);
  Latch latch;
  f.executor->submit(f.blocked_payload(2, kD2h, latch));
  f.executor->submit(f.payload(1));
  f.executor->submit(f.payload(0, kApply));
  latch.wait_for_arrival();
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(5));
    latch.open();
  });
  f.executor.reset();
  opener.join();
  EXPECT_EQ(f.log.lanes_of(2).size(), 4U);
  EXPECT_EQ(f.log.lanes_of(1).size(), 4U);
  EXPECT_THAT(f.log.lanes_of(0), ElementsAre(kD2h, kHost, kH2d));
}

// I7: if each completion started the next payload from within, the stack would overflow here.
TEST(ExecutorTest, StreamsThatRunAtOnceRecurseNoDeeperThanThereAreLanes) {
  constexpr int kMany = 20011;
  LanesFixture f(kMany, Order::kEdf, StreamKind::kInline);
  for (int layer = 0; layer < kMany; ++layer) f.executor->submit(f.payload(layer, kD2h));
  EXPECT_THAT(f.log.entries(), IsEmpty());
  f.executor->release();
  f.executor->drain();
  EXPECT_EQ(f.log.entries().size(), 4U * kMany);
}

// I1
TEST(ExecutorTest, OneStreamMayServeSeveralLanes) {
  LanesFixture f(7);
  Executor::Config config = config_of(four_lanes(), kFourLanes, f.streams, 7);
  for (LaneConfig& lane : config.lanes) lane.stream = &f.streams[0];
  Executor executor(config);
  for (int layer = 6; layer >= 0; --layer) executor.submit(f.payload(layer));
  executor.drain();
  expect_every_lane_once(f);
}

}  // namespace
}  // namespace sluiceway::test
