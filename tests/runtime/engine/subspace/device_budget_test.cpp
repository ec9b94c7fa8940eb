// The planned cost of a weight and an engine on a CUDA device is what they take from the budget.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/runtime/engine/subspace/device_run.h"

namespace sluiceway::test {
namespace {

struct Case {
  std::string name;
  std::string codec;
  CoreTier tier;
  SecondMoment second;
  ResidualKind residual;
};

class DeviceBudgetTest : public testing::TestWithParam<Case> {};

TEST_P(DeviceBudgetTest, AWeightReservesExactlyWhatThePlanSays) {
  const Case& c = GetParam();
  WeightSpec spec;
  spec.name = "w";
  spec.rows = 67;
  spec.cols = 131;
  spec.codec.name = c.codec;
  spec.tier = c.tier;
  spec.second_moment = c.second;
  spec.residual = c.residual;
  const DeviceId device = DeviceId::cuda(0);
  Budget budget = Budget::unlimited();
  const SubspaceWeight weight(spec, device, budget);
  const WeightPlan plan = plan_weight(spec, false, device);
  EXPECT_EQ(budget.used(Tier::kDevice), plan.device_bytes + plan.projector_bytes);
  EXPECT_EQ(budget.used(Tier::kHost), plan.host_bytes);
  EXPECT_EQ(budget.used(Tier::kPinned), plan.pinned_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, DeviceBudgetTest,
    testing::Values(
        Case{"plain", "block_random", CoreTier::kHost, SecondMoment::kFull, ResidualKind::kNone},
        Case{"factored_residual", "block_random", CoreTier::kHost, SecondMoment::kFull,
             ResidualKind::kFactored},
        Case{"sign_residual", "svd", CoreTier::kHost, SecondMoment::kFactored, ResidualKind::kSign},
        Case{"on_device", "sparse_random", CoreTier::kDevice, SecondMoment::kFull,
             ResidualKind::kFactored},
        Case{"factored_on_device", "sparse_learned", CoreTier::kDevice, SecondMoment::kFactored,
             ResidualKind::kFactored},
        Case{"no_core", "none", CoreTier::kHost, SecondMoment::kFull, ResidualKind::kFactored}),
    [](const auto& param) { return param.param.name; });

TEST(CudaEngineBudgetTest, AnEngineReservesWhatItsPlanSaysAndNothingMoreInARun) {
  DeviceRun run(DeviceId::cuda(0), {.name = "run",
                                    .codec = "sparse_learned",
                                    .residual = ResidualKind::kFactored,
                                    .refresh_every = 6});
  std::vector<WeightPlan> plans;
  std::uint64_t planned = 0;  // Includes gradients that wait for step().
  std::uint64_t pinned = shared_pinned_bytes(DeviceRun::kWeights, DeviceId::cuda(0));
  for (int i = 0; i < DeviceRun::kWeights; ++i) {
    const WeightPlan& plan = plans.emplace_back(run.engine().weight(i).plan);
    planned += plan.device_bytes + plan.projector_bytes + plan.scan_bytes + plan.held_bytes;
    pinned += plan.pinned_bytes;
  }
  planned += shared_bytes(plans, true, DeviceId::cuda(0));
  EXPECT_EQ(run.engine().budget().used(Tier::kDevice), planned);
  EXPECT_EQ(run.engine().budget().used(Tier::kPinned), pinned);
  run.trajectory();
  EXPECT_EQ(run.engine().budget().peak(Tier::kDevice), planned);
  EXPECT_EQ(run.engine().budget().peak(Tier::kPinned), pinned);
}

}  // namespace
}  // namespace sluiceway::test
