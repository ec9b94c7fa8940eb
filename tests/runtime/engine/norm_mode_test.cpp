// NormModeChooser: when host work may start before the norm is known.
#include "runtime/engine/norm_mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"

namespace sluiceway {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr LanePlan kLanes{.gather_before = 1, .device_lane = 3};

std::vector<LayerCost> layers(double device_s, double host_s) {
  return std::vector<LayerCost>(16, LayerCost{device_s, 2 * device_s, {1e-4, host_s, 1e-4, 1e-5}});
}

TEST(NormModeChooserTest, AutoStaysExactWhileHostWorkHidesBehindTheForward) {
  const NormModeChooser chooser(NormChoice::kAuto, Order::kEdf);
  EXPECT_TRUE(chooser.decides());
  EXPECT_FALSE(chooser.speculative());
  EXPECT_FALSE(chooser.prefers_speculative(layers(0.01, 1e-4), kLanes));
}

TEST(NormModeChooserTest, AutoPrefersSpeculativeWhereTheHostIsTheBottleneck) {
  const NormModeChooser chooser(NormChoice::kAuto, Order::kEdf);
  EXPECT_TRUE(chooser.prefers_speculative(layers(0.001, 0.003), kLanes));
}

TEST(NormModeChooserTest, AutoReturnsToExactWhenManyStepsAreClipped) {
  NormModeChooser chooser(NormChoice::kAuto, Order::kEdf);
  for (int i = 0; i < 10; ++i) chooser.note_step(true);
  EXPECT_FALSE(chooser.prefers_speculative(layers(0.001, 0.003), kLanes));
  for (int i = 0; i < 200; ++i) chooser.note_step(false);
  EXPECT_TRUE(chooser.prefers_speculative(layers(0.001, 0.003), kLanes));
}

TEST(NormModeChooserTest, BarrierIsExactWhateverIsAsked) {
  EXPECT_FALSE(NormModeChooser(NormChoice::kSpeculative, Order::kBarrier).speculative());
  EXPECT_FALSE(NormModeChooser(NormChoice::kAuto, Order::kBarrier).decides());
  EXPECT_TRUE(NormModeChooser(NormChoice::kSpeculative, Order::kEdf).speculative());
}

TEST(NormModeChooserTest, UnknownNamesAreErrors) {
  EXPECT_EQ(parse_norm_choice("speculative"), NormChoice::kSpeculative);
  EXPECT_THAT([] { parse_norm_choice("exat"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("is \"exat\"")));
}

}  // namespace
}  // namespace sluiceway
