// On a machine without a device or a driver, a build with CUDA reports this to every caller.
//
// It runs everywhere: existing devices are hidden from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/base/error.h"
#include "tests/runtime/device/no_device.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class NoDriverTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("CUDA_VISIBLE_DEVICES", "", 1); }
};

TEST_F(NoDriverTest, HasNoDevices) { EXPECT_EQ(device_count(), 0); }

TEST_F(NoDriverTest, HostDeviceCanBeUsed) { EXPECT_NO_THROW(check_device(DeviceId::host())); }

TEST_F(NoDriverTest, EveryEntrySaysThatTheMachineHasNone) {
  for (const auto& [name, entry] : entries_for_device_3()) {
    SCOPED_TRACE(name);
    EXPECT_THAT(entry,
                ThrowsMessage<Unavailable>(AllOf(
                    HasSubstr("device: CUDA device 3 was requested, but this machine has none: "),
                    HasSubstr("use the host device"))));
  }
}

}  // namespace
}  // namespace sluiceway::test
