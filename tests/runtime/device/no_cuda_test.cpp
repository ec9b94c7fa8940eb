// A build without CUDA counts no devices and says so to whoever asks for one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "kernels/base/error.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/link_copy.h"
#include "runtime/device/stream.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DeviceId kCuda3 = DeviceId::cuda(3);

auto says_no_cuda() {
  return ThrowsMessage<Unavailable>(
      AllOf(HasSubstr("CUDA device 3"), HasSubstr("this build has no CUDA")));
}

TEST(NoCudaTest, HasNoDevices) { EXPECT_EQ(device_count(), 0); }

TEST(NoCudaTest, HostDeviceCanBeUsed) { EXPECT_NO_THROW(check_device(DeviceId::host())); }

TEST(NoCudaTest, CheckRefusesAnOrdinal) {
  EXPECT_THAT([] { check_device(kCuda3); }, says_no_cuda());
}

TEST(NoCudaTest, StreamsRefuseAnOrdinal) {
  EXPECT_THAT([] { Stream::owned(kCuda3, {"stream"}); }, says_no_cuda());
  EXPECT_THAT([] { Stream::borrowed(StreamRef::cuda(3, nullptr)); }, says_no_cuda());
}

TEST(NoCudaTest, GuardRefusesAnOrdinal) {
  EXPECT_THAT([] { const DeviceGuard guard(kCuda3); }, says_no_cuda());
}

TEST(NoCudaTest, LinkRefusesAnOrdinal) {
  EXPECT_THAT([] { LinkCopy(kCuda3, LinkDirection::kDeviceToHost, {}); }, says_no_cuda());
}

TEST(NoCudaTest, MemoryRefusesAnOrdinal) {
  std::array<std::byte, 8> bytes{};
  EXPECT_THAT([] { allocate_device_bytes(kCuda3, 8); }, says_no_cuda());
  EXPECT_THAT([] { allocate_pinned_bytes(kCuda3, 8); }, says_no_cuda());
  EXPECT_THAT([&] { fill_device_bytes(kCuda3, bytes.data(), std::byte{1}, 8); }, says_no_cuda());
  EXPECT_THAT([&] { copy_device_bytes(kCuda3, bytes.data(), bytes.data(), 8); }, says_no_cuda());
}

}  // namespace
}  // namespace sluiceway::test
