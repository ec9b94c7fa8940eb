// Buffer on every device: alignment, contents, budget, and nothing left behind after a failure.
#include "runtime/memory/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/scribble.h"
#include "tests/runtime/device/sanitizer_options.h"
#include "tests/support/backend.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost, Tier::kPinned};

class BufferTest : public testing::TestWithParam<DeviceId> {
 protected:
  Buffer buffer_on(Tier tier, std::size_t bytes, Fill fill = Fill::kZero) {
    return {budget, tier, GetParam(), bytes, "test", fill};
  }
  static bool all(Tier tier, const Buffer& buffer, std::byte value) {
    std::vector<std::byte> bytes(buffer.size());
    copy_device_bytes(home(tier), bytes.data(), buffer.data(), bytes.size());
    return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
  }
  static void fill(Tier tier, const Buffer& buffer, std::byte value) {
    fill_device_bytes(home(tier), buffer.data(), value, buffer.size());
  }

  Budget budget{Budget::Limits{1 << 20, 1 << 20, 1 << 20, 1 << 20}};

 private:
  static DeviceId home(Tier tier) { return tier == Tier::kDevice ? GetParam() : DeviceId::host(); }
};

INSTANTIATE_TEST_SUITE_P(Devices, BufferTest, testing::ValuesIn(built_devices()), device_name);

TEST_P(BufferTest, StartsAsZeroAlignedAndCounted) {
  for (const Tier tier : kMemoryTiers) {
    const std::uintptr_t alignment = tier == Tier::kPinned ? 4096 : 64;
    const Buffer buffer = buffer_on(tier, 10'007);
    EXPECT_EQ(buffer.size(), 10'007U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0U);
    EXPECT_TRUE(all(tier, buffer, std::byte{0}));
    EXPECT_EQ(budget.used(tier), tier == Tier::kPinned ? 3U * 4096U : 10'007U);
  }
}

TEST_P(BufferTest, PinnedSizeIsRoundedToAPageAndNotToAPowerOfTwo) {
  const Buffer buffer = buffer_on(Tier::kPinned, 5 * 4096 + 1);
  EXPECT_EQ(budget.used(Tier::kPinned), 6U * 4096U);
}

TEST_P(BufferTest, IsZeroAgainWhereOldBytesLay) {
  for (const Tier tier : kMemoryTiers) {
    for (int i = 0; i < 4; ++i) {
      const Buffer buffer = buffer_on(tier, 4093);
      EXPECT_TRUE(all(tier, buffer, std::byte{0}));
      fill(tier, buffer, std::byte{0x77});
    }
  }
}

TEST_P(BufferTest, WithoutFillAScribblingRunShowsIt) {
  for (const Tier tier : kMemoryTiers) {
    const Buffer buffer = buffer_on(tier, 4093, Fill::kNone);
    if (scribbles()) {
      EXPECT_TRUE(all(tier, buffer, kScribble));
    }
    fill(tier, buffer, std::byte{0x11});
    EXPECT_TRUE(all(tier, buffer, std::byte{0x11}));
  }
}

TEST_P(BufferTest, EmptyBufferHoldsNothing) {
  for (const Tier tier : kMemoryTiers) {
    const Buffer buffer = buffer_on(tier, 0);
    EXPECT_EQ(buffer.size(), 0U);
    EXPECT_TRUE(buffer.as<float>().empty());
    EXPECT_EQ(budget.used(tier), 0U);
  }
  const Buffer none;
  EXPECT_EQ(none.data(), nullptr);
}

TEST_P(BufferTest, DestructionGivesTheBytesBack) {
  { const Buffer buffer = buffer_on(Tier::kPinned, 5000); }
  EXPECT_EQ(budget.used(Tier::kPinned), 0U);
  EXPECT_EQ(budget.peak(Tier::kPinned), 8192U);
}

TEST_P(BufferTest, MoveKeepsAddressAndContents) {
  Buffer first = buffer_on(Tier::kHost, 100);
  first.as<char>()[99] = 'z';
  std::byte* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.as<char>()[99], 'z');
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the promise.
  EXPECT_EQ(first.size(), 0U);
  EXPECT_EQ(budget.used(Tier::kHost), 100U);

  Buffer third = buffer_on(Tier::kDevice, 50);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
  EXPECT_EQ(budget.used(Tier::kHost), 100U);
}

TEST_P(BufferTest, SpanCountsWholeElements) {
  const Buffer buffer = buffer_on(Tier::kHost, 11);
  EXPECT_EQ(buffer.as<float>().size(), 2U);
}

TEST_P(BufferTest, BudgetRefusesBeforeAnythingIsAllocated) {
  EXPECT_THAT(
      [&] { Buffer(budget, Tier::kHost, GetParam(), (1 << 20) + 1, "moments of layer 7"); },
      ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("moments of layer 7"), HasSubstr("1048577 bytes"),
                                       HasSubstr("1048576 bytes"))));
  EXPECT_EQ(budget.used(Tier::kHost), 0U);
}

TEST_P(BufferTest, PinnedRequestThatFitsOnlyUnroundedIsRefused) {
  Budget tight(Budget::Limits{0, 0, 5000, 0});
  EXPECT_THROW(Buffer(tight, Tier::kPinned, GetParam(), 4097, "test"), OutOfMemory);
  EXPECT_EQ(tight.used(Tier::kPinned), 0U);
}

TEST_P(BufferTest, SystemsRefusalGivesTheReservationBack) {
  constexpr std::size_t kTooMuch = SIZE_MAX / 2;
  Budget unlimited(Budget::Limits{Budget::kUnlimited, Budget::kUnlimited, Budget::kUnlimited, 0});
  for (const Tier tier : kMemoryTiers) {
    EXPECT_THAT([&] { Buffer(unlimited, tier, GetParam(), kTooMuch, "test"); },
                ThrowsMessage<OutOfMemory>(HasSubstr(std::to_string(kTooMuch) + " bytes")));
    EXPECT_EQ(unlimited.used(tier), 0U);
  }
}

TEST_P(BufferTest, SizeThatWrapsWhenRoundedIsRefused) {
  Budget unlimited(Budget::Limits{0, 0, Budget::kUnlimited, 0});
  EXPECT_THROW(Buffer(unlimited, Tier::kPinned, GetParam(), SIZE_MAX, "test"), InvalidArgument);
  EXPECT_EQ(unlimited.used(Tier::kPinned), 0U);
}

TEST_P(BufferTest, DiskTierHasNoBuffers) {
  EXPECT_THAT([&] { Buffer(budget, Tier::kDisk, GetParam(), 8, "states"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("8 bytes on the disk tier")));
  EXPECT_EQ(budget.used(Tier::kDisk), 0U);
}

}  // namespace
}  // namespace sluiceway::test
