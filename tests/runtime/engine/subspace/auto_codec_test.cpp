// The choice of codec="auto": svd only where a core pays, fits and costs little of a run.
#include "runtime/engine/subspace/auto_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/learner.h"
#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Budget::Limits kRoomy = {1ULL << 40, 1ULL << 40, 1ULL << 40, 0};
constexpr Budget::Limits kNothing = {};

struct Needed {
  Tier tier;
  std::uint64_t bytes;
};

// Returns enough room on every tier but one.
Budget::Limits room(const Needed& needed) {
  Budget::Limits limits = kRoomy;
  limits[static_cast<std::size_t>(needed.tier)] = needed.bytes;
  return limits;
}

class AutoCodecTest : public testing::Test {
 protected:
  AutoCodecTest() {
    WeightSpec& spec = specs.emplace_back();
    spec.name = "w";
    spec.rows = spec.cols = 64;
    spec.codec.name = "auto";
    spec.codec.ratio = 0.5;
    spec.residual = ResidualKind::kFactored;
  }

  std::vector<WeightSpec> specs;  // 64 x 64, with a core of 32 x 32.
  RunShape cheap{.tokens_per_step = 1 << 20, .steps = kMostSteps};
};

// Returns what the weight needs on each tier with svd.
std::vector<Needed> needed_of(const WeightPlan& plan, DeviceId device) {
  return {{Tier::kDevice, plan.device_bytes + plan.projector_bytes + plan.scan_bytes +
                              plan.held_bytes + 2 * plan.scratch_bytes + plan.fit_bytes},
          {Tier::kHost, plan.host_bytes + plan.host_scratch_bytes},
          {Tier::kPinned, plan.pinned_bytes + shared_pinned_bytes(1, device)}};
}

TEST_F(AutoCodecTest, IsSvdWhereEveryTierHasRoomForIt) {
  specs[0].wire = WireFormat::kInt8;  // int8 has scratch on the host.
  std::vector<WeightSpec> svd = specs;
  svd[0].codec.name = "svd";
  const WeightPlan plan = plan_weight(svd[0], false, DeviceId::host());
  for (const Needed& needed : needed_of(plan, DeviceId::host())) {
    ASSERT_GT(needed.bytes, 0U) << to_string(needed.tier);
    EXPECT_EQ(auto_codec(specs, DeviceId::host(), room(needed), cheap).name, "svd");
    const AutoCodec choice =
        auto_codec(specs, DeviceId::host(), room({needed.tier, needed.bytes - 1}), cheap);
    EXPECT_EQ(choice.name, "none") << to_string(needed.tier);
    ASSERT_TRUE(choice.shortage);
    EXPECT_EQ(choice.shortage->tier, needed.tier);
    EXPECT_EQ(choice.shortage->needed, needed.bytes);
    EXPECT_EQ(choice.shortage->free, needed.bytes - 1);
  }
  const std::uint64_t needed = needed_of(plan, DeviceId::host())[0].bytes;
  RunShape refreshed = cheap;
  refreshed.refresh_every = 100;
  const std::uint64_t with_refresh = needed - plan.scratch_bytes + plan.refresh_scratch_bytes;
  ASSERT_GT(with_refresh, needed);
  const auto on_device = [&](std::uint64_t bytes, const RunShape& run) {
    return auto_codec(specs, DeviceId::host(), room({Tier::kDevice, bytes}), run).name;
  };
  EXPECT_EQ(on_device(with_refresh, refreshed), "svd");
  EXPECT_EQ(on_device(with_refresh - 1, refreshed), "none");
  RunShape twice = cheap;
  twice.speculative = true;
  const Needed once = needed_of(plan, DeviceId::host())[1];
  const AutoCodec choice = auto_codec(specs, DeviceId::host(), room(once), twice);
  ASSERT_TRUE(choice.shortage);
  EXPECT_EQ(choice.shortage->needed,
            plan_weight(svd[0], true, DeviceId::host()).host_bytes + plan.host_scratch_bytes);
}

TEST_F(AutoCodecTest, ProductsAreThreeWithAResidualAndOneMoreForEachMicroBatch) {
  // P^T G takes 2 x 32 x 64 x 64, (P^T G) Q takes 2 x 32 x 32 x 64; the weight itself 6 x 64 x 64
  // T.
  const double once = 2.0 * 32 * 64 * (64 + 32) / (6.0 * 64 * 64);
  RunShape run{.tokens_per_step = 1000, .steps = 1000};
  EXPECT_DOUBLE_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).products, 3 * once / 1000);
  run.backwards = 4;
  EXPECT_DOUBLE_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).products, 6 * once / 1000);
  specs[0].residual = ResidualKind::kNone;
  EXPECT_DOUBLE_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).products, 5 * once / 1000);
}

TEST_F(AutoCodecTest, CalibrationIsSpreadOverTheRunAndRepeatedWithEachRefresh) {
  RunShape run{.tokens_per_step = 1000, .steps = 100};
  const double fit = leading_directions_flop(64, 64, 32, 32) / (6.0 * 64 * 64 * 1000);
  EXPECT_DOUBLE_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).calibration, fit / 100);
  run.refresh_every = 25;
  EXPECT_DOUBLE_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).calibration, 5 * fit / 100);
}

TEST_F(AutoCodecTest, IsNoneWhereBothTogetherCostTooMuch) {
  RunShape run{.tokens_per_step = 2048, .steps = kMostSteps};
  const AutoCodec enough = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_LT(enough.products + enough.calibration, kMostOfARun);
  EXPECT_EQ(enough.name, "svd");
  run.steps = 1;  // Only the calibration counts.
  const AutoCodec brief = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_LT(brief.products, kMostOfARun);
  EXPECT_EQ(brief.name, "none");
  specs[0].rows = specs[0].cols = 128;
  run = {.tokens_per_step = 1024, .steps = kMostSteps};  // Only the products count.
  const AutoCodec small = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_LT(small.calibration, kMostOfARun);
  EXPECT_TRUE(!small.shortage && small.pays);
  EXPECT_EQ(small.name, "none");
}

TEST_F(AutoCodecTest, MayTakeMoreOfARunOfLargeSteps) {
  specs[0].rows = specs[0].cols = 600;  // Products take 450 / T of a step.
  RunShape run{.tokens_per_step = kLargeStep, .steps = kMostSteps};
  const AutoCodec large = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_DOUBLE_EQ(large.most, kMostOfALargeStepRun);
  EXPECT_GT(large.products, kMostOfARun);
  EXPECT_EQ(large.name, "svd");
  run.tokens_per_step -= 1;
  const AutoCodec small = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_DOUBLE_EQ(small.most, kMostOfARun);
  EXPECT_TRUE(small.pays);
  EXPECT_EQ(small.name, "none");
  run.tokens_per_step = kLargeStep;
  specs[0].rows = specs[0].cols = 800;  // 600 / T of a step.
  const AutoCodec wide = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_GT(wide.products, kMostOfALargeStepRun);
  EXPECT_EQ(wide.name, "none");
}

TEST_F(AutoCodecTest, IsNoneWhereNoCoreWasMeasuredToPay) {
  for (WeightSpec& spec : specs) spec.rows = spec.cols = 8;  // Cheap at any number of tokens.
  RunShape run{.tokens_per_step = kLeastTokens, .steps = kMostSteps};
  EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).name, "svd");
  run.tokens_per_step -= 1;
  const AutoCodec few = auto_codec(specs, DeviceId::host(), kRoomy, run);
  EXPECT_LT(few.products + few.calibration, kMostOfARun);
  EXPECT_FALSE(few.pays);
  EXPECT_EQ(few.name, "none");
  const RunShape long_run{.tokens_per_step = kLeastTokens, .steps = kMostSteps + 1};
  EXPECT_FALSE(auto_codec(specs, DeviceId::host(), kRoomy, long_run).pays);
  EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, long_run).name, "none");
  specs[0].dtype = DType::kBF16;
  specs[0].rounding = Rounding::kStochastic;
  EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).name, "svd");
  run.tokens_per_step = kLeastTokens16Bit;
  EXPECT_TRUE(auto_codec(specs, DeviceId::host(), kRoomy, run).pays);
  run.tokens_per_step -= 1;
  EXPECT_FALSE(auto_codec(specs, DeviceId::host(), kRoomy, run).pays);
  run.tokens_per_step = 1 << 20;
  specs.push_back(specs[0]);
  for (const double ratio : {0.49, 0.51}) {
    specs[1].codec.ratio = ratio;
    EXPECT_FALSE(auto_codec(specs, DeviceId::host(), kRoomy, run).pays);
    EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, run).name, "none");
  }
}

TEST_F(AutoCodecTest, IsACoreWhereTheResidualWouldNotTrainAlone) {
  RunShape few{.tokens_per_step = 1, .steps = 1};
  for (const ResidualKind kind : {ResidualKind::kNone, ResidualKind::kSign}) {
    specs[0].residual = kind;
    EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, few).name, "block_random");
    EXPECT_EQ(auto_codec(specs, DeviceId::host(), kNothing, cheap).name, "block_random");
    EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, cheap).name, "svd");
    specs[0].codec.ratio = 0.25;
    EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, cheap).name, "svd");
    EXPECT_FALSE(auto_codec(specs, DeviceId::host(), kRoomy, cheap).pays);
    specs[0].codec.ratio = 0.5;
  }
  specs[0].residual = ResidualKind::kFactored;
  few.residual_every = cheap.residual_every = 2;  // Half of all gradients would be lost.
  EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, few).name, "block_random");
  EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, cheap).name, "svd");
}

TEST_F(AutoCodecTest, OtherCodecsCountTowardsTheMemoryAlone) {
  specs.push_back(specs[0]);
  specs[1].codec.name = "identity";
  specs[1].residual = ResidualKind::kNone;
  specs[1].rows = 4096;
  const std::vector<WeightSpec> alone(specs.begin(), specs.begin() + 1);
  EXPECT_EQ(auto_codec(specs, DeviceId::host(), kRoomy, cheap).products,
            auto_codec(alone, DeviceId::host(), kRoomy, cheap).products);
}

TEST_F(AutoCodecTest, RunOfNothingIsRefused) {
  EXPECT_THAT([&] { auto_codec(specs, DeviceId::host(), kRoomy, {.tokens_per_step = 0}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("0 tokens per step, 1000 steps")));
}

}  // namespace
}  // namespace sluiceway::test
