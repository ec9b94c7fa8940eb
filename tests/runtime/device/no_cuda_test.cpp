// A build without CUDA counts no devices, and every request for one throws.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/runtime/device/no_device.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(NoCudaTest, HasNoDevices) { EXPECT_EQ(device_count(), 0); }

TEST(NoCudaTest, HostDeviceCanBeUsed) { EXPECT_NO_THROW(check_device(DeviceId::host())); }

TEST(NoCudaTest, EveryEntryRefusesAnOrdinal) {
  for (const auto& [name, entry] : entries_for_device_3()) {
    SCOPED_TRACE(name);
    EXPECT_THAT(entry, ThrowsMessage<Unavailable>(
                           AllOf(HasSubstr("CUDA device 3"), HasSubstr("this build has no CUDA"))));
  }
}

}  // namespace
}  // namespace sluiceway::test
