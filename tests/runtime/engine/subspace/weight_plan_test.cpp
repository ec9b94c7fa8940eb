// The planned cost of a weight is what it takes from the budget.
#include "runtime/engine/subspace/weight_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kernels/base/error.h"
#include "runtime/engine/subspace/subspace_weight.h"
#include "runtime/memory/budget.h"

namespace sluiceway {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Case {
  std::string codec;
  WireFormat wire;
  CoreTier tier;
  DType dtype;
  Rounding rounding;
  SecondMoment second_moment = SecondMoment::kFull;
};

class WeightPlanTest : public testing::TestWithParam<Case> {};

WeightSpec spec_of(const Case& c) {
  WeightSpec spec;
  spec.name = "w";
  spec.rows = 67;
  spec.cols = 131;
  spec.dtype = c.dtype;
  spec.codec.name = c.codec;
  spec.wire = c.wire;
  spec.tier = c.tier;
  spec.rounding = c.rounding;
  spec.second_moment = c.second_moment;
  return spec;
}

TEST_P(WeightPlanTest, TheWeightReservesExactlyWhatThePlanSays) {
  Budget budget = Budget::unlimited();
  SubspaceWeight weight(spec_of(GetParam()), DeviceId::host(), budget);
  const WeightPlan& plan = weight.plan;
  EXPECT_EQ(budget.used(Tier::kDevice), plan.device_bytes + plan.projector_bytes);
  EXPECT_EQ(budget.used(Tier::kHost), plan.host_bytes);
  EXPECT_EQ(budget.used(Tier::kPinned), plan.pinned_bytes);
  if (GetParam().tier == CoreTier::kDevice) return;
  weight.moments.add_spare(budget, weight.spec.name);
  EXPECT_EQ(budget.used(Tier::kHost), plan_weight(weight.spec, true, DeviceId::host()).host_bytes);
}

TEST_P(WeightPlanTest, WhatCrossesIsTheCoreInTheWireFormat) {
  const WeightPlan plan = plan_weight(spec_of(GetParam()), false, DeviceId::host());
  const bool stays = GetParam().tier == CoreTier::kDevice;
  const std::uint64_t wire = stays ? 0 : wire_bytes(GetParam().wire, plan.core.elems());
  EXPECT_EQ(plan.d2h_bytes, wire);
  EXPECT_EQ(plan.h2d_bytes, wire);
}

INSTANTIATE_TEST_SUITE_P(
    Engine, WeightPlanTest,
    testing::Values(
        Case{"block_random", WireFormat::kBF16, CoreTier::kHost, DType::kF32, Rounding::kNearest},
        Case{"sparse_learned", WireFormat::kInt8, CoreTier::kHost, DType::kBF16,
             Rounding::kStochastic},
        Case{"identity", WireFormat::kF32, CoreTier::kHost, DType::kBF16, Rounding::kResidual},
        Case{"block_random", WireFormat::kBF16, CoreTier::kDevice, DType::kF32, Rounding::kNearest},
        Case{"block_random", WireFormat::kBF16, CoreTier::kHost, DType::kF32, Rounding::kNearest,
             SecondMoment::kFactored},
        Case{"block_random", WireFormat::kBF16, CoreTier::kDevice, DType::kF32, Rounding::kNearest,
             SecondMoment::kFactored}));

TEST(WeightPlanErrorTest, NamesTheWeightAndTheDtypeItCannotHave) {
  Case c{"identity", WireFormat::kF32, CoreTier::kHost, DType::kF32, Rounding::kStochastic};
  EXPECT_THAT(
      [&] { plan_weight(spec_of(c), false, DeviceId::host()); },
      ThrowsMessage<InvalidArgument>(HasSubstr("w is f32, which does not fit its rounding")));
  WeightSpec empty = spec_of(c);
  empty.rows = 0;
  EXPECT_THAT([&] { plan_weight(empty, false, DeviceId::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w is 0x131, expected at least 1x1")));
}

TEST(WeightPlanErrorTest, AWeightTooLargeForItsTierNamesBothByteCountsAndTheWeight) {
  Case c{"identity", WireFormat::kF32, CoreTier::kHost, DType::kF32, Rounding::kNearest};
  Budget::Limits limits;
  limits.fill(Budget::kUnlimited);
  limits[1] = 1000;  // Host.
  Budget budget(limits);
  EXPECT_THAT([&] { SubspaceWeight(spec_of(c), DeviceId::host(), budget); },
              ThrowsMessage<OutOfMemory>(testing::AllOf(HasSubstr("35108 bytes"),
                                                        HasSubstr("1000 bytes"), HasSubstr("w"))));
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kPinned}) {
    EXPECT_EQ(budget.used(tier), 0U) << to_string(tier);
  }
}

}  // namespace
}  // namespace sluiceway
