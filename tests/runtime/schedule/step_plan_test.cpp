// The rules of a step: ranks, gates, and the words that name orders and lanes.
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
    for (const int transition : {0, 5, 9}) {
      const StepPlan plan{order, transition};
      EXPECT_LT(plan.rank(3, 8, 1), plan.rank(4, 0, 0)) << to_string(order);
      EXPECT_LT(plan.rank(3, 0, 1), plan.rank(4, 8, 7)) << to_string(order);
    }
  }
}

TEST(StepPlanTest, RanksFollowArrivalDeadlineOrTransition) {
  EXPECT_LT((StepPlan{Order::kFcfs, 9}.rank(0, 7, 0)), (StepPlan{Order::kFcfs, 9}.rank(0, 6, 1)));
  EXPECT_LT((StepPlan{Order::kEdf, 0}.rank(0, 6, 1)), (StepPlan{Order::kEdf, 0}.rank(0, 7, 0)));
  const StepPlan paper{Order::kPaper, 4};
  EXPECT_LT(paper.rank(0, 5, 2), paper.rank(0, 4, 3));  // Both above: as they came.
  EXPECT_LT(paper.rank(0, 2, 5), paper.rank(0, 3, 4));  // Both below: last come first served.
  EXPECT_LT(paper.rank(0, 3, 4), paper.rank(0, 4, 3));  // Below goes before above.
}

TEST(StepPlanTest, OnlyTheBarrierGathersAndOnlyBeforeTheHost) {
  for (const Order order : kAllOrders) {
    const StepPlan plan{order, 0};
    for (const Lane lane : kLanes) {
      EXPECT_EQ(plan.gathers_before(lane), order == Order::kBarrier && lane == Lane::kHost);
    }
    EXPECT_EQ(plan.forward_waits_for_all(), order == Order::kBarrier);
  }
}

TEST(OrderTest, NamesAreReadAsTheyAreWritten) {
  for (const Order order : kAllOrders) EXPECT_EQ(parse_order(to_string(order)), order);
  EXPECT_THAT([] { parse_order("lifo"); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("order is \"lifo\", expected barrier, fcfs, paper or edf")));
}

TEST(LaneTest, NamesAreDistinct) {
  EXPECT_EQ(to_string(Lane::kD2h), "d2h");
  EXPECT_EQ(to_string(Lane::kHost), "host");
  EXPECT_EQ(to_string(Lane::kH2d), "h2d");
  EXPECT_EQ(to_string(Lane::kApply), "apply");
}

}  // namespace
}  // namespace sluiceway::test
