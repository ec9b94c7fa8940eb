// Without CUDA in the build, making an engine for a CUDA device throws.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "runtime/engine/offload/offload_engine.h"

namespace sluiceway::test {
namespace {

TEST(NoCudaEngineTest, ADeviceIsRefusedWithWhatToDo) {
  OffloadOptions options(DeviceId::cuda(0));
  options.lanes.limits.fill(Budget::kUnlimited);
  EXPECT_THAT(
      [&] {
        OffloadEngine(options, {{"w", {64, 64}}});
      },
      testing::ThrowsMessage<Unavailable>(testing::HasSubstr(
          "CUDA device 0 was requested, but this build has no CUDA; use the host device")));
}

TEST(NoCudaEngineTest, WhatIsOnAnotherDeviceIsRefused) {
  OffloadOptions options(DeviceId::host());
  options.lanes.limits.fill(Budget::kUnlimited);
  OffloadEngine engine(options, {{"w", {64, 64}, DType::kBF16}});
  std::vector<bf16> weight(64 * 64);
  const AnyMatrix view{weight.data(), 64, 64, 64, DType::kBF16};
  const StreamRef elsewhere = StreamRef::cuda(0, nullptr);
  const auto refused = testing::ThrowsMessage<InvalidArgument>(
      testing::HasSubstr("on CUDA device 0, expected the host device"));
  EXPECT_THAT([&] { engine.begin({&view, 1}, elsewhere); }, refused);
  engine.begin({&view, 1});
  EXPECT_THAT([&] { engine.resume({&view, 1}, elsewhere); }, refused);
  EXPECT_THAT([&] { engine.add_gradient(0, view, nullptr, elsewhere); }, refused);
  EXPECT_FALSE(engine.has_gradient());
}

}  // namespace
}  // namespace sluiceway::test
