// The rules of a step: ranks, gates, and the names of orders.
#include "runtime/schedule/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Order kAllOrders[] = {Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf};

TEST(StepPlanTest, AnEarlierStepGoesFirstWhateverTheOrder) {
  for (const Order order : kAllOrders) {
    for (const std::uint64_t transition : {0U, 5U, 9U}) {
      const StepPlan plan{order, transition, {}};
      EXPECT_LT(plan.rank(3, 8, 1), plan.rank(4, 0, 0)) << to_string(order);
      EXPECT_LT(plan.rank(3, 0, 1), plan.rank(4, 8, 7)) << to_string(order);
    }
  }
}

TEST(StepPlanTest, RanksFollowArrivalDeadlineOrTransition) {
  EXPECT_LT((StepPlan{Order::kFcfs, 9, {}}.rank(0, 7, 0)),
            (StepPlan{Order::kFcfs, 9, {}}.rank(0, 6, 1)));
  EXPECT_LT((StepPlan{Order::kEdf, 0, {}}.rank(0, 6, 1)),
            (StepPlan{Order::kEdf, 0, {}}.rank(0, 7, 0)));
  const StepPlan paper{Order::kPaper, 4, {}};
  EXPECT_LT(paper.rank(0, 5, 2), paper.rank(0, 4, 3));  // Both above: in order of arrival.
  EXPECT_LT(paper.rank(0, 2, 5), paper.rank(0, 3, 4));  // Both below: last come, first served.
  EXPECT_LT(paper.rank(0, 3, 4), paper.rank(0, 4, 3));  // One below precedes one above.
}

TEST(StepPlanTest, EqualDeadlinesFollowArrival) {
  const StepPlan edf{Order::kEdf, 0, {}};
  EXPECT_LT(edf.rank(0, 3, 4), edf.rank(0, 3, 5));
  EXPECT_LT(edf.rank(0, 2, 9), edf.rank(0, 3, 5));
}

TEST(StepPlanTest, OnlyTheBarrierHasAGateAndItIsWhereTheLanesSay) {
  for (const Order order : kAllOrders) {
    for (const LaneId lane : {0, 1, 5}) {
      const StepPlan plan{order, 0, {.gather_before = lane, .device_lane = 2}};
      EXPECT_EQ(plan.gate(), order == Order::kBarrier ? std::optional(lane) : std::nullopt);
      EXPECT_EQ(plan.forward_waits_for_all(), order == Order::kBarrier);
    }
    EXPECT_EQ((StepPlan{order, 0, {}}.gate()), std::nullopt);
  }
}

TEST(OrderTest, NamesAreReadAsTheyAreWritten) {
  for (const Order order : kAllOrders) EXPECT_EQ(parse_order(to_string(order)), order);
  EXPECT_THAT([] { parse_order("lifo"); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("order is \"lifo\", expected barrier, fcfs, paper or edf")));
}

}  // namespace
}  // namespace sluiceway::test
