// DeviceId and StreamRef: forgetting the device never selects the host.
#include "kernels/base/stream_ref.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

static_assert(!std::is_default_constructible_v<DeviceId>);
static_assert(!std::is_default_constructible_v<StreamRef>);
static_assert(!std::is_constructible_v<DeviceId, int>, "an ordinal says which kind it is of");
static_assert(!std::is_convertible_v<DeviceId, StreamRef>);

TEST(DeviceIdTest, HostAndCudaDevicesDiffer) {
  EXPECT_TRUE(DeviceId::host().is_host());
  EXPECT_FALSE(DeviceId::cuda(0).is_host());
  EXPECT_EQ(DeviceId::cuda(3).ordinal(), 3);
  EXPECT_NE(DeviceId::cuda(0), DeviceId::host());
  EXPECT_NE(DeviceId::cuda(0), DeviceId::cuda(1));
}

TEST(DeviceIdTest, NegativeOrdinalIsNotTheHost) {
  EXPECT_THAT([] { DeviceId::cuda(-1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("CUDA device -1, expected 0 or more")));
}

TEST(DeviceIdTest, IsNamedInErrors) {
  EXPECT_EQ(to_string(DeviceId::host()), "the host device");
  EXPECT_EQ(to_string(DeviceId::cuda(2)), "CUDA device 2");
}

TEST(StreamRefTest, KnowsItsDeviceAndItsHandle) {
  int handle = 0;
  EXPECT_TRUE(StreamRef::host().is_host());
  EXPECT_EQ(StreamRef::host().native(), nullptr);
  EXPECT_EQ(StreamRef::cuda(1, &handle).device(), DeviceId::cuda(1));
  EXPECT_EQ(StreamRef::cuda(1, &handle).native(), &handle);
}

}  // namespace
}  // namespace sluiceway::test
