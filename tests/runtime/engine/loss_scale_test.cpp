// The loss scale's state machine, transition by transition.
#include "runtime/engine/loss_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/error.h"

namespace sluiceway {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

LossScale dynamic(double initial, std::int64_t interval) {
  LossScale::Config config;
  config.mode = LossScale::Mode::kDynamic;
  config.initial = initial;
  config.growth_interval = interval;
  return LossScale(config);
}

TEST(LossScaleTest, HalvesOnOverflowAndDoublesAfterEnoughCleanStepsInARow) {
  LossScale scale = dynamic(1024, 3);
  scale.update(true);
  EXPECT_EQ(scale.value(), 512);
  scale.update(false);
  scale.update(false);
  EXPECT_EQ(scale.value(), 512);
  scale.update(false);
  EXPECT_EQ(scale.value(), 1024);
}

TEST(LossScaleTest, AnOverflowStartsTheCountOfCleanStepsAgain) {
  LossScale scale = dynamic(1024, 2);
  scale.update(false);
  scale.update(true);
  scale.update(false);
  EXPECT_EQ(scale.value(), 512);
  scale.update(false);
  EXPECT_EQ(scale.value(), 1024);
}

TEST(LossScaleTest, StaysAtTheFloorAndCountsTheOverflowsThere) {
  LossScale scale = dynamic(2, 100);
  for (int i = 0; i < 4; ++i) scale.update(true);
  EXPECT_EQ(scale.value(), 1);
  EXPECT_EQ(scale.state().overflows_at_floor, 3);
}

TEST(LossScaleTest, NeverGrowsBeyondWhatAFloatHolds) {
  LossScale scale = dynamic(0x1p127, 1);
  scale.update(false);
  EXPECT_EQ(scale.value(), 0x1p127);
}

TEST(LossScaleTest, OffAndStaticNeverMove) {
  LossScale off(LossScale::Config{});
  LossScale::Config config;
  config.mode = LossScale::Mode::kStatic;
  config.initial = 128;
  LossScale fixed(config);
  for (const bool overflowed : {true, false, true}) {
    off.update(overflowed);
    fixed.update(overflowed);
  }
  EXPECT_EQ(off.value(), 1);
  EXPECT_EQ(fixed.value(), 128);
}

TEST(LossScaleTest, ContinuesFromALoadedState) {
  LossScale scale = dynamic(1024, 4);
  for (int i = 0; i < 3; ++i) scale.update(false);
  LossScale resumed = dynamic(1024, 4);
  resumed.load(scale.state());
  resumed.update(false);
  EXPECT_EQ(resumed.value(), 2048);
}

TEST(LossScaleTest, RefusesValuesThatAreNotPositiveNumbers) {
  EXPECT_THAT([] { dynamic(-3, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("initial is -3, expected a positive")));
  EXPECT_THAT([] { dynamic(1, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("growth_interval is 0 steps")));
  LossScale scale = dynamic(8, 1);
  EXPECT_THROW(scale.load({std::numeric_limits<double>::quiet_NaN(), 0, 0}), InvalidArgument);
  EXPECT_EQ(scale.value(), 8);
}

}  // namespace
}  // namespace sluiceway
