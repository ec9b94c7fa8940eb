// Which weight measures when: sweeps, rolling turns, missed turns, state.
#include "compress/refresh_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

RefreshPolicy::Config closure(std::int64_t every) {
  return {.every = every, .source = CalibrationSource::kClosure};
}

RefreshPolicy::Config rolling(std::int64_t every, int per_step) {
  return {.every = every, .source = CalibrationSource::kRolling, .per_step = per_step};
}

// Measures every weight that is due, as an engine does, and returns them.
std::vector<int> turn(RefreshPolicy& policy, std::int64_t step) {
  std::vector<int> due = policy.due(step);
  for (const int weight : due) policy.measured(step, weight);
  return due;
}

TEST(RefreshPolicyTest, NothingIsEverDueByDefault) {
  const RefreshPolicy policy({}, 5);
  for (std::int64_t step = 0; step < 3000; ++step) EXPECT_THAT(policy.due(step), IsEmpty());
}

TEST(RefreshPolicyTest, OnlyTheLearnedFamilyRefreshesUnasked) {
  EXPECT_EQ(RefreshPolicy::default_config("block_random").every, 0);
  EXPECT_EQ(RefreshPolicy::default_config("identity").every, 0);
  EXPECT_GT(RefreshPolicy::default_config("sparse_learned").every, 0);
}

TEST(RefreshPolicyTest, ClosureMeasuresAllWeightsAtTheStartAndEveryNSteps) {
  RefreshPolicy policy(closure(10), 3);
  for (std::int64_t step = 0; step < 31; ++step) {
    if (step % 10 == 0) {
      EXPECT_THAT(turn(policy, step), ElementsAre(0, 1, 2)) << step;
    } else {
      EXPECT_THAT(turn(policy, step), IsEmpty()) << step;
    }
  }
}

TEST(RefreshPolicyTest, ClosureIsNotAskedAgainForAWeightWithoutGradient) {
  RefreshPolicy policy(closure(10), 2);
  policy.measured(0, 0);
  EXPECT_THAT(policy.due(1), IsEmpty());
  EXPECT_THAT(policy.due(10), ElementsAre(0, 1));
}

TEST(RefreshPolicyTest, RollingTurnsStartAtOnceAndComeBackEveryNSteps) {
  RefreshPolicy policy(rolling(4, 2), 5);
  EXPECT_THAT(turn(policy, 0), ElementsAre(0, 1));
  EXPECT_THAT(turn(policy, 1), ElementsAre(2, 3));
  EXPECT_THAT(turn(policy, 2), ElementsAre(4));
  EXPECT_THAT(turn(policy, 3), IsEmpty());
  EXPECT_THAT(turn(policy, 4), ElementsAre(0, 1));
}

TEST(RefreshPolicyTest, RollingSweepTakesTheStepsItNeeds) {
  RefreshPolicy policy(rolling(1, 1), 3);
  EXPECT_THAT(turn(policy, 0), ElementsAre(0));
  EXPECT_THAT(turn(policy, 1), ElementsAre(1));
  EXPECT_THAT(turn(policy, 2), ElementsAre(2));
  EXPECT_THAT(turn(policy, 3), ElementsAre(0));
}

TEST(RefreshPolicyTest, MissedRollingTurnStaysDueUntilMeasured) {
  RefreshPolicy policy(rolling(10, 2), 2);
  policy.measured(0, 0);
  EXPECT_THAT(policy.due(0), ElementsAre(1));
  EXPECT_THAT(policy.due(7), ElementsAre(1));
  policy.measured(7, 1);
  EXPECT_THAT(policy.due(7), IsEmpty());
  EXPECT_THAT(policy.due(10), ElementsAre(0, 1));
}

TEST(RefreshPolicyTest, WeightIsMeasuredOnceAStepHoweverManyMicroBatches) {
  RefreshPolicy policy(rolling(1, 1), 1);
  EXPECT_TRUE(policy.due(3, 0));
  policy.measured(3, 0);
  EXPECT_FALSE(policy.due(3, 0));
  EXPECT_TRUE(policy.due(4, 0));
}

TEST(RefreshPolicyTest, LoadedStateAnswersLikeTheSavedOne) {
  RefreshPolicy saved(rolling(6, 2), 7);
  for (std::int64_t step = 0; step < 9; ++step) turn(saved, step);
  saved.measured(9, 3);
  RefreshPolicy loaded(rolling(6, 2), 7);
  loaded.load(saved.save());
  for (std::int64_t step = 9; step < 40; ++step) EXPECT_EQ(turn(loaded, step), turn(saved, step));
}

TEST(RefreshPolicyTest, StateOfAnotherNumberOfWeightsIsCorrupt) {
  RefreshPolicy policy(rolling(6, 2), 7);
  EXPECT_THAT([&] { policy.load(RefreshPolicy(rolling(6, 2), 6).save()); },
              ThrowsMessage<Corrupt>(HasSubstr("48 bytes, expected 56 bytes for 7 weights")));
}

TEST(RefreshPolicyTest, NoWeightsAreNeverDue) {
  EXPECT_THAT(RefreshPolicy(closure(1), 0).due(0), IsEmpty());
  EXPECT_THAT(RefreshPolicy(rolling(1, 3), 0).due(0), IsEmpty());
}

TEST(RefreshPolicyTest, RejectsNumbersBelowTheirRange) {
  EXPECT_THAT([] { RefreshPolicy(rolling(-1, 1), 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("every is -1 steps")));
  EXPECT_THAT([] { RefreshPolicy(rolling(1, 0), 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("per_step is 0 weights")));
}

TEST(CalibrationSourceTest, IsReadFromItsName) {
  EXPECT_EQ(parse_calibration_source("closure"), CalibrationSource::kClosure);
  EXPECT_EQ(parse_calibration_source("rolling"), CalibrationSource::kRolling);
  EXPECT_THAT([] { parse_calibration_source("sweep"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"sweep\"")));
}

}  // namespace
}  // namespace sluiceway::test
