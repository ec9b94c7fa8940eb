// Raw memory of the host device: alignment, contents, and requests that the system rejects.
#include "runtime/device/device_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/runtime/device/sanitizer_options.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DeviceId kHost = DeviceId::host();
constexpr std::size_t kTooMuch = std::numeric_limits<std::size_t>::max() / 2;

bool aligned(const void* pointer, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(pointer) % to == 0;
}

TEST(DeviceMemoryTest, EveryByteOfAnOddSizeCanBeWritten) {
  for (const std::size_t bytes : {1UL, 63UL, 64UL, 65UL, 4099UL, 1048583UL}) {
    void* const pointer = allocate_device_bytes(kHost, bytes);
    EXPECT_TRUE(aligned(pointer, 64)) << bytes;
    std::memset(pointer, 0x5A, bytes);
    free_device_bytes(kHost, pointer, bytes);
  }
}

TEST(DeviceMemoryTest, PinnedBytesStartOnAPageAsZero) {
  for (const std::size_t bytes : {1UL, 4096UL, 4097UL, 1048583UL}) {
    const PinnedBytes pinned = allocate_pinned_bytes(kHost, bytes);
    EXPECT_FALSE(pinned.locked);
    auto* const pointer = static_cast<char*>(pinned.data);
    EXPECT_TRUE(aligned(pointer, kPageBytes)) << bytes;
    EXPECT_EQ(std::vector<char>(pointer, pointer + bytes), std::vector<char>(bytes, 0));
    std::memset(pointer, 0x5A, bytes);
    free_pinned_bytes(pinned, bytes);
  }
}

TEST(DeviceMemoryTest, NothingIsAllocatedForZeroBytes) {
  EXPECT_EQ(allocate_device_bytes(kHost, 0), nullptr);
  EXPECT_EQ(allocate_pinned_bytes(kHost, 0).data, nullptr);
  free_device_bytes(kHost, nullptr, 0);
  free_pinned_bytes({}, 0);
  fill_device_bytes(kHost, nullptr, std::byte{1}, 0);
  copy_device_bytes(kHost, nullptr, nullptr, 0);
}

TEST(DeviceMemoryTest, RefusalNamesTheBytes) {
  const auto refused = ThrowsMessage<OutOfMemory>(
      AllOf(HasSubstr(std::to_string(kTooMuch) + " bytes"), HasSubstr("Cannot allocate memory")));
  EXPECT_THAT([] { allocate_device_bytes(kHost, kTooMuch); }, refused);
  EXPECT_THAT([] { allocate_pinned_bytes(kHost, kTooMuch); }, refused);
  EXPECT_THROW(allocate_pinned_bytes(kHost, SIZE_MAX), OutOfMemory);  // Rounding up wraps.
}

TEST(DeviceMemoryTest, FillAndCopyTouchExactlyTheirBytes) {
  std::vector<char> source(67, 'a');
  std::vector<char> target(67, 'b');
  fill_device_bytes(kHost, source.data() + 3, std::byte{'c'}, 41);
  copy_device_bytes(kHost, target.data() + 5, source.data() + 3, 42);
  EXPECT_EQ(std::string(target.begin(), target.end()),
            std::string(5, 'b') + std::string(41, 'c') + "a" + std::string(20, 'b'));
}

TEST(DeviceMemoryTest, RoundUpReachesTheNextMultipleAndStaysOnOne) {
  EXPECT_EQ(round_up(0, 64), 0U);
  EXPECT_EQ(round_up(1, 64), 64U);
  EXPECT_EQ(round_up(64, 64), 64U);
  EXPECT_EQ(round_up(65, 64), 128U);
}

}  // namespace
}  // namespace sluiceway::test
