// Without CUDA in the build, making an engine for a CUDA device throws.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "runtime/engine/subspace/subspace_engine.h"

namespace sluiceway::test {
namespace {

TEST(NoCudaEngineTest, ADeviceIsRefusedWithWhatToDo) {
  SubspaceOptions options(DeviceId::cuda(0));
  options.lanes.limits.fill(Budget::kUnlimited);
  WeightSpec spec;
  spec.name = "w";
  spec.rows = spec.cols = 64;
  EXPECT_THAT([&] { SubspaceEngine(options, {spec}, nullptr); },
              testing::ThrowsMessage<Unavailable>(testing::HasSubstr(
                  "CUDA device 0 was requested, but this build has no CUDA; use the host device")));
}

}  // namespace
}  // namespace sluiceway::test
