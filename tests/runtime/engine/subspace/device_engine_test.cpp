// The subspace engine trains on a CUDA device as on the host device: every codec, wire, tier and
// residual.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/codec_families.h"
#include "tests/runtime/engine/device_stall.h"
#include "tests/runtime/engine/subspace/device_run.h"
#include "tests/support/trajectory.h"

namespace sluiceway::test {
namespace {

class DeviceEngineTest : public testing::TestWithParam<RunCase> {};

// Returns the distance of a weight to its neighbour. For f32 weights: the effect of twenty steps of
// rounding in another order on a weight of size 1. After a narrow wire: that part of two updates,
// since a rounding to the other side is one unit of the wire.
double tolerance(const RunCase& run, double weight) {
  if (run.rounding != Rounding::kNearest) return 0x1p-7 * std::max(std::abs(weight), 0x1p-6);
  if (run.wire == WireFormat::kF32 || run.tier == CoreTier::kDevice) return 4e-6;
  return 4 * kRunHyper.lr * (run.wire == WireFormat::kBF16 ? 0x1p-8 : 1.0 / 127);
}

TEST_P(DeviceEngineTest, TwentyStepsAsOnTheHostDevice) {
  const RunCase& run = GetParam();
  RunCase on_threads = run;
  on_threads.host_threads = 3;  // As in an engine on a card.
  DeviceRun on_host(DeviceId::host(), run), on_device(DeviceId::cuda(0), on_threads);
  const std::vector<Matrix> expected = on_host.trajectory(), found = on_device.trajectory();
  ASSERT_EQ(on_device.outcomes().size(), std::size_t{DeviceRun::kSteps});
  for (std::size_t step = 0; step < on_host.outcomes().size(); ++step) {
    const StepOutcome& a = on_host.outcomes()[step];
    const StepOutcome& b = on_device.outcomes()[step];
    EXPECT_EQ(a.skipped, step == DeviceRun::kOverflow);
    EXPECT_EQ(b.skipped, a.skipped);
    EXPECT_EQ(b.residuals_kept, a.residuals_kept);
    if (a.skipped) continue;
    EXPECT_NEAR(b.grad_norm, a.grad_norm, 1e-4 * a.grad_norm);
  }
  const Distance apart = expect_alike(expected, found, DeviceRun::kSteps + 1, DeviceRun::kSteps,
                                      [&](double weight) { return tolerance(run, weight); });
  if (run.rounding != Rounding::kNearest) {
    EXPECT_LE(apart.share, 0.01);
  }
}

TEST_P(DeviceEngineTest, ThreadsOfTheHostLaneChangeNoBit) {
  RunCase run = GetParam();
  DeviceRun one(DeviceId::host(), run);
  run.host_threads = 4;
  DeviceRun four(DeviceId::host(), run);
  EXPECT_TRUE(one.trajectory() == four.trajectory());
}

std::vector<RunCase> cases() {
  using enum WireFormat;
  using enum Rounding;
  constexpr auto kOnDevice = CoreTier::kDevice;
  constexpr auto kFactored = SecondMoment::kFactored;
  constexpr auto kSpeculative = NormChoice::kSpeculative;
  constexpr auto kRows = ResidualKind::kFactored, kSign = ResidualKind::kSign;
  return {
      {.name = "identity", .codec = "identity"},
      {.name = "identity_bf16_wire",
       .codec = "identity",
       .wire = kBF16,
       .norm = kSpeculative,
       .micro_batches = 2},
      {.name = "identity_int8_wire",
       .codec = "identity",
       .wire = kInt8,
       .second = kFactored,
       .max_norm = 0.5},
      {.name = "identity_on_device",
       .codec = "identity",
       .tier = kOnDevice,
       .micro_batches = 2,
       .max_norm = 0.5},
      {.name = "none", .codec = "none", .residual = kRows},
      {.name = "none_at_once",
       .codec = "none",
       .rounding = kStochastic,
       .residual = kSign,
       .micro_batches = 2,
       .at_once = true},
      {.name = "block_random_clipped",
       .codec = "block_random",
       .wire = kBF16,
       .rounding = kStochastic,
       .residual = kRows,
       .norm = kSpeculative,
       .micro_batches = 2,
       .max_norm = 0.5},
      {.name = "block_random_at_once",
       .codec = "block_random",
       .tier = kOnDevice,
       .second = kFactored,
       .rounding = kResidual,
       .residual = kRows,
       .micro_batches = 2,
       .at_once = true},
      {.name = "block_random_int8_wire",
       .codec = "block_random",
       .wire = kInt8,
       .rounding = kStochastic,
       .residual = kSign,
       .norm = kSpeculative},
      {.name = "block_random_barrier",
       .codec = "block_random",
       .micro_batches = 2,
       .max_norm = 0.5,
       .order = Order::kBarrier},
      {.name = "block_random_cores",
       .codec = "block_random",
       .wire = kBF16,
       .norm = kSpeculative,
       .micro_batches = 2,
       .as_core = true},
      {.name = "block_pca", .codec = "block_pca", .max_norm = 0.5},
      {.name = "block_pca_refreshed",
       .codec = "block_pca",
       .tier = kOnDevice,
       .second = kFactored,
       .residual = kRows,
       .micro_batches = 2,
       .refresh_every = 6},
      {.name = "svd", .codec = "svd", .residual = kRows},
      {.name = "svd_bf16",
       .codec = "svd",
       .wire = kBF16,
       .second = kFactored,
       .rounding = kStochastic,
       .residual = kSign,
       .norm = kSpeculative,
       .micro_batches = 2,
       .at_once = true,
       .max_norm = 0.5},
      {.name = "sparse_random", .codec = "sparse_random", .norm = kSpeculative, .micro_batches = 2},
      {.name = "sparse_random_int8_wire",
       .codec = "sparse_random",
       .wire = kInt8,
       .rounding = kResidual},
      {.name = "sparse_random_cores",
       .codec = "sparse_random",
       .tier = kOnDevice,
       .max_norm = 0.5,
       .as_core = true},
      {.name = "sparse_learned", .codec = "sparse_learned", .refresh_every = 6},
      {.name = "sparse_learned_on_device",
       .codec = "sparse_learned",
       .tier = kOnDevice,
       .rounding = kStochastic,
       .micro_batches = 2,
       .max_norm = 0.5,
       .refresh_every = 6},
      {.name = "galore", .codec = "galore"},
      {.name = "topk_columns", .codec = "topk_columns", .wire = kBF16, .norm = kSpeculative},
      {.name = "none_on_streams", .codec = "none", .residual = kRows, .side_streams = 2},
      {.name = "block_random_on_streams",
       .codec = "block_random",
       .wire = kInt8,
       .residual = kRows,
       .norm = kSpeculative,
       .micro_batches = 2,
       .side_streams = 2},
      {.name = "block_random_at_once_on_streams",
       .codec = "block_random",
       .tier = kOnDevice,
       .residual = kRows,
       .micro_batches = 2,
       .at_once = true,
       .max_norm = 0.5,
       .side_streams = 3},
      {.name = "cores_on_streams",
       .codec = "sparse_random",
       .wire = kBF16,
       .micro_batches = 2,
       .as_core = true,
       .side_streams = 2},
      {.name = "refreshed_on_streams", .codec = "block_pca", .refresh_every = 6, .side_streams = 1},
  };
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceEngineTest, testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(CudaEngineTest, ABackwardEndsWhileTheDeviceIsBehindAndTellsItsNormWhenItIsAsked) {
  const RunCase run{.name = "held", .codec = "block_random", .micro_batches = 2};
  DeviceRun on_host(DeviceId::host(), run), on_device(DeviceId::cuda(0), run);
  for (DeviceRun* each : {&on_host, &on_device}) {
    each->forward(0);
    each->backward(0);
    each->end_step();  // From now on payloads leave after the second backward.
    each->forward(1);
  }
  on_host.backward(1);
  const HoldWord held = on_device.hold();
  on_device.backward(1);
  const Event reached = on_device.reached();
  EXPECT_FALSE(reached.happened());
  held.raise();
  const double expected = on_host.engine().gathered_norm().norm;
  EXPECT_NEAR(on_device.engine().gathered_norm().norm, expected, 1e-4 * expected);
  EXPECT_NEAR(on_device.engine().gradient_scan(1).sum_squares,
              on_host.engine().gradient_scan(1).sum_squares, 1e-4 * expected * expected);
  on_host.end_step();
  on_device.end_step();
  EXPECT_NEAR(on_device.outcomes()[1].grad_norm, expected, 1e-4 * expected);
}

TEST(CudaEngineTest, AForwardThatWaitsForTheLinkStalls) {
  DeviceRun run(DeviceId::cuda(0), {.name = "slow", .codec = "identity", .h2d = {0, 60e3}});
  expect_stalls_only_of_a_forward_that_waits(run, 0.060, [&](int step) { run.forward(step); });
}

// Every family must run here, because no other test runs it on a device.
TEST(CudaEngineTest, EveryFamilyIsAmongTheCases) {
  const std::vector<RunCase> all = cases();
  for (const CodecFamily* family : codec_families()) {
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const RunCase& run) {
      return run.codec == family->name;
    })) << family->name;
  }
}

}  // namespace
}  // namespace sluiceway::test
