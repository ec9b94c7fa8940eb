// Everything that an engine and its computing streams take of a device is in its budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <vector>

#include "tests/runtime/engine/subspace/device_run.h"
#include "tests/support/simt/arena.h"

namespace sluiceway::test {
namespace {

std::size_t free_bytes() { return simt::Arena::of(0).free_bytes(); }

// The arena's own bytes: red zones and rounding of about a hundred arrays.
constexpr std::size_t kRedZones = std::size_t{1} << 20;

class EngineMemoryTest : public testing::TestWithParam<RunCase> {};

// Ends the process, with 0 if the test passes.
void run_and_exit(const RunCase& of) {
  const std::size_t before = free_bytes();
  DeviceRun run(DeviceId::cuda(0), of);
  run.trajectory();
  const std::size_t taken = before - free_bytes() - run.own_bytes();
  const std::size_t reserved = run.engine().budget().used(Tier::kDevice);
  std::cerr << "the device has given " << taken << " bytes, " << reserved << " are reserved\n";
  std::_Exit(taken <= reserved + kRedZones ? 0 : 1);
}

// A stream that computed and was not counted would show as 4 MiB more. The scratch of streams stays
// in the process and may serve later streams, so each case has its own process.
TEST_P(EngineMemoryTest, TheDeviceHasGivenNoMoreThanTheBudgetSays) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(run_and_exit(GetParam()), testing::ExitedWithCode(0), "bytes");
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

TEST(SimtEngineMemoryTest, EnginesOneAfterAnotherTakeNoMoreThanTheFirst) {
  std::vector<std::size_t> left(4);
  for (std::size_t& bytes : left) {
    DeviceRun(DeviceId::cuda(0), {.name = "run", .codec = "block_random"}).trajectory();
    bytes = free_bytes();
  }
  EXPECT_THAT(left, testing::Each(left.front()));
}

}  // namespace
}  // namespace sluiceway::test
