// The offload engine trains on a CUDA device as on the host device, with every codec that draws,
// policy and store: to equal bits where gradients cross whole and nothing is clipped, otherwise up
// to rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/codec_families.h"
#include "tests/runtime/engine/device_stall.h"
#include "tests/runtime/engine/offload/device_run.h"
#include "tests/support/offload_reference.h"
#include "tests/support/trajectory.h"

namespace sluiceway::test {
namespace {

class DeviceEngineTest : public testing::TestWithParam<RunCase> {};

// AdamW runs on the host, and a gradient that crosses whole has the same bits on every device. A
// device sums in another order: the norm, and with it the clip factor, may differ by a unit in the
// last place, and a core by one of its wire.
bool is_exact(const RunCase& run) { return !run.compresses() && run.max_norm == 0; }

// Returns the distance of a weight to its neighbour. For f32 weights: how far twenty steps may
// carry a rounding to the other side, of the wire or of a gradient.
double tolerance(const RunCase& run, double weight) {
  if (is_exact(run)) return 0;
  const double update = run.compresses() ? 4 * kRunHyper.lr * 0x1p-8 : 4e-6;
  if (run.dtype == DType::kF32) return update;
  const double unit = run.dtype == DType::kBF16 ? 0x1p-7 : 0x1p-10;
  return update + unit * std::max(std::abs(weight), 0x1p-6);
}

TEST_P(DeviceEngineTest, TwentyStepsAsOnTheHostDevice) {
  const RunCase& run = GetParam();
  RunCase on_threads = run;
  on_threads.host_threads = 3;  // As in an engine on a card.
  RunCase resident = run;
  resident.streamed = false;
  DeviceRun on_host(DeviceId::host(), resident), on_device(DeviceId::cuda(0), on_threads);
  const std::vector<Matrix> expected = on_host.trajectory(), found = on_device.trajectory();
  ASSERT_EQ(on_device.outcomes().size(), std::size_t{DeviceRun::kSteps});
  for (std::size_t step = 0; step < on_host.outcomes().size(); ++step) {
    const StepOutcome& a = on_host.outcomes()[step];
    const StepOutcome& b = on_device.outcomes()[step];
    EXPECT_EQ(a.skipped, step == DeviceRun::kOverflow);
    EXPECT_EQ(b.skipped, a.skipped);
    if (a.skipped) continue;
    EXPECT_NEAR(b.grad_norm, a.grad_norm, (run.compresses() ? 1e-4 : 1e-6) * a.grad_norm);
    EXPECT_EQ(a.clip_factor<1, run.max_norm> 0);
  }
  expect_alike(expected, found, DeviceRun::kLooks, DeviceRun::kSteps,
               [&](double weight) { return tolerance(run, weight); });
  EXPECT_EQ(on_device.engine().committed_steps(), on_host.engine().committed_steps());
  if (is_exact(run)) {
    EXPECT_EQ(state_difference(on_device.engine(), on_host.engine()), "");
  }
}

TEST_P(DeviceEngineTest, ThreadsOfTheHostLaneAndStreamedWeightsChangeNoBit) {
  RunCase run = GetParam();
  DeviceRun one(DeviceId::host(), run);
  run.host_threads = 4;
  run.streamed = !run.streamed && run.side_streams == 0;
  DeviceRun four(DeviceId::host(), run);
  EXPECT_TRUE(one.trajectory() == four.trajectory());
}

std::vector<RunCase> cases() {
  constexpr auto kEarly = UpdatePolicy::kSpeculative;
  constexpr auto kF32 = DType::kF32, kF16 = DType::kF16;
  constexpr std::uint64_t kAll = std::uint64_t{1} << 30;
  constexpr auto kCore = CoreSpill::kCore;
  return {
      {.name = "identity"},
      {.name = "identity_rounded", .f32_gradients = true, .micro_batches = 2},
      {.name = "identity_f32", .dtype = kF32, .gradient = kF32, .micro_batches = 2},
      {.name = "identity_f32_rounded", .dtype = kF32, .order = Order::kBarrier, .on_disk = true},
      {.name = "identity_f16_clipped", .dtype = kF16, .gradient = kF16, .max_norm = 0.5},
      {.name = "identity_clipped", .micro_batches = 2, .max_norm = 0.5, .on_disk = true},
      {.name = "identity_slow_link", .f32_gradients = true, .link = {0.05, 20}},
      {.name = "speculative", .policy = kEarly},
      {.name = "speculative_parked",
       .dtype = kF16,
       .gradient = kF16,
       .f32_gradients = true,
       .policy = kEarly,
       .park_bytes = kAll,
       .on_disk = true},
      {.name = "speculative_clipped", .policy = kEarly, .park_bytes = 8000, .max_norm = 0.5},
      {.name = "speculative_summed",
       .dtype = kF32,
       .gradient = kF32,
       .policy = kEarly,
       .redo = true,
       .micro_batches = 2},
      {.name = "block_random", .codec = "block_random", .redraw = 6, .micro_batches = 2},
      {.name = "block_random_f32",
       .codec = "block_random",
       .dtype = kF32,
       .gradient = kF32,
       .wire = WireFormat::kF32,
       .redraw = 6,
       .max_norm = 0.5},
      {.name = "block_random_as_core",
       .codec = "block_random",
       .spill = kCore,
       .redraw = 4,
       .on_disk = true},
      {.name = "block_random_speculative",
       .codec = "block_random",
       .policy = kEarly,
       .park_bytes = kAll,
       .redo = true,
       .micro_batches = 2,
       .on_disk = true},
      {.name = "sparse_random", .codec = "sparse_random", .f32_gradients = true, .on_disk = true},
      {.name = "sparse_random_f16",
       .codec = "sparse_random",
       .dtype = kF16,
       .gradient = kF16,
       .wire = WireFormat::kF32,
       .micro_batches = 2},
      {.name = "sparse_random_speculative_clipped",
       .codec = "sparse_random",
       .spill = kCore,
       .redraw = 6,
       .policy = kEarly,
       .max_norm = 0.5,
       .order = Order::kPaper},
      {.name = "eight_bits", .micro_batches = 2, .states = StateCodec::k8Bit},
      {.name = "eight_bits_f32_speculative",
       .dtype = kF32,
       .policy = kEarly,
       .on_disk = true,
       .states = StateCodec::k8Bit},
      {.name = "bf16_states_f16",
       .dtype = kF16,
       .gradient = kF16,
       .f32_gradients = true,
       .on_disk = true,
       .states = StateCodec::kBf16},
      {.name = "bf16_states", .states = StateCodec::kBf16},
      {.name = "streamed", .streamed = true},
      {.name = "streamed_f32_from_disk",
       .dtype = kF32,
       .gradient = kF32,
       .micro_batches = 2,
       .on_disk = true,
       .link = {0.05, 20},
       .streamed = true},
      {.name = "streamed_eight_bits_speculative",
       .policy = kEarly,
       .max_norm = 0.5,
       .on_disk = true,
       .states = StateCodec::k8Bit,
       .streamed = true},
      {.name = "streamed_f16_cores",
       .codec = "block_random",
       .dtype = kF16,
       .gradient = kF16,
       .redraw = 6,
       .streamed = true},
      {.name = "overflow", .micro_batches = 2, .max_norm = 0.5, .overflows = true},
      {.name = "overflow_streamed_eight_bits",
       .overflows = true,
       .states = StateCodec::k8Bit,
       .streamed = true},
      {.name = "overflow_as_core",
       .codec = "block_random",
       .spill = kCore,
       .overflows = true,
       .link = {0.05, 20}},
      {.name = "identity_on_streams", .f32_gradients = true, .micro_batches = 2, .side_streams = 2},
      {.name = "block_random_on_streams",
       .codec = "block_random",
       .redraw = 6,
       .micro_batches = 2,
       .side_streams = 2},
      {.name = "sparse_random_speculative_on_streams",
       .codec = "sparse_random",
       .spill = kCore,
       .policy = kEarly,
       .max_norm = 0.5,
       .side_streams = 1},
  };
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceEngineTest, testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(CudaEngineTest, ItTakesWhatIsPlannedForACard) {
  for (const RunCase& run : cases()) {
    if (run.streamed) continue;  // Its slots are in no footprint.
    DeviceRun on_host(DeviceId::host(), run), on_device(DeviceId::cuda(0), run);
    const OffloadFootprint here = on_host.footprint(), there = on_device.footprint();
    const auto before = on_host.engine().take_stats().use.used;
    const auto after = on_device.engine().take_stats().use.used;
    const auto of = [](const auto& used, Tier tier) {
      return used[static_cast<std::size_t>(tier)];
    };
    EXPECT_EQ(of(after, Tier::kPinned), there.pinned_bytes) << run.name;
    EXPECT_EQ(of(before, Tier::kPinned), here.pinned_bytes) << run.name;
    if (!run.overflows) {
      EXPECT_EQ(of(after, Tier::kHost) - of(before, Tier::kHost),
                there.cores.host_bytes - here.cores.host_bytes)
          << run.name;
    }
    EXPECT_EQ(of(after, Tier::kDisk) > 0, run.on_disk || run.overflows) << run.name;
    if (run.overflows) {
      EXPECT_EQ(of(after, Tier::kDisk), there.overflow_bytes) << run.name;
      EXPECT_EQ(of(before, Tier::kDisk), here.overflow_bytes) << run.name;
    }
    EXPECT_EQ(of(after, Tier::kDevice), there.cores.device_bytes + there.exit_bytes) << run.name;
    EXPECT_EQ(of(before, Tier::kDevice), here.cores.device_bytes) << run.name;
  }
}

TEST(CudaEngineTest, AForwardThatWaitsForTheLinkStalls) {
  DeviceRun run(DeviceId::cuda(0), {.name = "slow", .link = {0, 40e3}});
  expect_stalls_only_of_a_forward_that_waits(run, 0.040, [&](int step) { run.look(step); });
}

// Every family that draws must run here, because no other test runs it on a device.
TEST(CudaEngineTest, EveryFamilyThatDrawsIsAmongTheCases) {
  const std::vector<RunCase> all = cases();
  for (const CodecFamily* family : codec_families()) {
    if (family->learns || !family->projector_bytes) continue;
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const RunCase& run) {
      return run.codec == family->name;
    })) << family->name;
  }
}

}  // namespace
}  // namespace sluiceway::test
