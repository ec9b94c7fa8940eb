// All that an engine, and the streams it computes on, take of a device is in its budget.
#include <gtest/gtest.h>

#include <cstddef>

#include "tests/runtime/engine/subspace/device_run.h"
#include "tests/support/simt/arena.h"

namespace sluiceway::test {
namespace {

std::size_t free_bytes() { return simt::Arena::of(0).free_bytes(); }

// The arena's own: red zones and rounding of each of some hundred arrays.
constexpr std::size_t kRedZones = std::size_t{1} << 20;

class EngineMemoryTest : public testing::TestWithParam<RunCase> {};

// A stream that computed and was not counted would show as 4 MiB more. What streams of one test
// keep stays in the process, so the next one may take less than it reserves.
TEST_P(EngineMemoryTest, TheDeviceHasGivenNoMoreThanTheBudgetSays) {
  const std::size_t before = free_bytes();
  DeviceRun run(DeviceId::cuda(0), GetParam());
  run.trajectory();
  const std::size_t taken = before - free_bytes() - run.own_bytes();
  EXPECT_LE(taken, run.engine().budget().used(Tier::kDevice) + kRedZones);
}

INSTANTIATE_TEST_SUITE_P(Simt, EngineMemoryTest,
                         testing::Values(RunCase{.name = "first_on_host",
                                                 .codec = "sparse_random",
                                                 .wire = WireFormat::kInt8,
                                                 .residual = ResidualKind::kFactored,
                                                 .norm = NormChoice::kSpeculative,
                                                 .reloads = false},
                                         RunCase{.name = "second_on_device",
                                                 .codec = "block_pca",
                                                 .tier = CoreTier::kDevice,
                                                 .second = SecondMoment::kFactored,
                                                 .residual = ResidualKind::kSign,
                                                 .max_norm = 0.5,
                                                 .reloads = false}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace sluiceway::test
