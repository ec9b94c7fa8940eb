// Buffer: alignment, contents, budget, and that a refusal leaves nothing behind.
#include "runtime/memory/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/scribble.h"
#include "tests/runtime/device/sanitizer_options.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr DeviceId kHost = DeviceId::host();
constexpr Tier kMemoryTiers[] = {Tier::kDevice, Tier::kHost, Tier::kPinned};

class BufferTest : public testing::Test {
 protected:
  Budget budget{Budget::Limits{1 << 20, 1 << 20, 1 << 20, 1 << 20}};

  static bool all(const Buffer& buffer, std::byte value) {
    const auto bytes = buffer.as<std::byte>();
    return std::all_of(bytes.begin(), bytes.end(), [value](std::byte b) { return b == value; });
  }
};

TEST_F(BufferTest, StartsAsZeroAlignedAndCounted) {
  for (const Tier tier : kMemoryTiers) {
    const std::uintptr_t alignment = tier == Tier::kPinned ? 4096 : 64;
    const Buffer buffer(budget, tier, kHost, 10'007, "test");
    EXPECT_EQ(buffer.size(), 10'007U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment, 0U);
    EXPECT_TRUE(all(buffer, std::byte{0}));
    EXPECT_EQ(budget.used(tier), tier == Tier::kPinned ? 3U * 4096U : 10'007U);
  }
}

TEST_F(BufferTest, PinnedSizeIsRoundedToAPageAndNotToAPowerOfTwo) {
  const Buffer buffer(budget, Tier::kPinned, kHost, 5 * 4096 + 1, "test");
  EXPECT_EQ(budget.used(Tier::kPinned), 6U * 4096U);
}

TEST_F(BufferTest, IsZeroAgainWhereOldBytesLay) {
  for (const Tier tier : kMemoryTiers) {
    for (int i = 0; i < 4; ++i) {
      const Buffer buffer(budget, tier, kHost, 4093, "test");
      EXPECT_TRUE(all(buffer, std::byte{0}));
      std::memset(buffer.data(), 0x77, buffer.size());
    }
  }
}

TEST_F(BufferTest, WithoutFillAScribblingBuildShowsIt) {
  const Buffer buffer(budget, Tier::kHost, kHost, 4093, "test", Fill::kNone);
  if (scribbles()) {
    EXPECT_TRUE(all(buffer, kScribble));
  }
  std::memset(buffer.data(), 0x11, buffer.size());
  EXPECT_TRUE(all(buffer, std::byte{0x11}));
}

TEST_F(BufferTest, EmptyBufferHoldsNothing) {
  for (const Tier tier : kMemoryTiers) {
    const Buffer buffer(budget, tier, kHost, 0, "test");
    EXPECT_EQ(buffer.size(), 0U);
    EXPECT_TRUE(buffer.as<float>().empty());
    EXPECT_EQ(budget.used(tier), 0U);
  }
  const Buffer none;
  EXPECT_EQ(none.data(), nullptr);
}

TEST_F(BufferTest, DestructionGivesTheBytesBack) {
  { const Buffer buffer(budget, Tier::kPinned, kHost, 5000, "test"); }
  EXPECT_EQ(budget.used(Tier::kPinned), 0U);
  EXPECT_EQ(budget.peak(Tier::kPinned), 8192U);
}

TEST_F(BufferTest, MoveKeepsAddressAndContents) {
  Buffer first(budget, Tier::kHost, kHost, 100, "first");
  first.as<char>()[99] = 'z';
  std::byte* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.as<char>()[99], 'z');
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): that is the promise.
  EXPECT_EQ(first.size(), 0U);
  EXPECT_EQ(budget.used(Tier::kHost), 100U);

  Buffer third(budget, Tier::kDevice, kHost, 50, "third");
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
  EXPECT_EQ(budget.used(Tier::kHost), 100U);
}

TEST_F(BufferTest, SpanCountsWholeElements) {
  const Buffer buffer(budget, Tier::kHost, kHost, 11, "test");
  EXPECT_EQ(buffer.as<float>().size(), 2U);
}

TEST_F(BufferTest, BudgetRefusesBeforeAnythingIsAllocated) {
  EXPECT_THAT(
      [&] { Buffer(budget, Tier::kHost, kHost, (1 << 20) + 1, "moments of layer 7"); },
      ThrowsMessage<OutOfMemory>(AllOf(HasSubstr("moments of layer 7"), HasSubstr("1048577 bytes"),
                                       HasSubstr("1048576 bytes"))));
  EXPECT_EQ(budget.used(Tier::kHost), 0U);
}

TEST_F(BufferTest, PinnedRequestThatFitsOnlyUnroundedIsRefused) {
  Budget tight(Budget::Limits{0, 0, 5000, 0});
  EXPECT_THROW(Buffer(tight, Tier::kPinned, kHost, 4097, "test"), OutOfMemory);
  EXPECT_EQ(tight.used(Tier::kPinned), 0U);
}

TEST_F(BufferTest, SystemsRefusalGivesTheReservationBack) {
  constexpr std::size_t kTooMuch = SIZE_MAX / 2;
  Budget unlimited(Budget::Limits{Budget::kUnlimited, Budget::kUnlimited, Budget::kUnlimited, 0});
  for (const Tier tier : kMemoryTiers) {
    EXPECT_THAT([&] { Buffer(unlimited, tier, kHost, kTooMuch, "test"); },
                ThrowsMessage<OutOfMemory>(HasSubstr(std::to_string(kTooMuch) + " bytes")));
    EXPECT_EQ(unlimited.used(tier), 0U);
  }
}

TEST_F(BufferTest, SizeThatWrapsWhenRoundedIsRefused) {
  Budget unlimited(Budget::Limits{0, 0, Budget::kUnlimited, 0});
  EXPECT_THROW(Buffer(unlimited, Tier::kPinned, kHost, SIZE_MAX, "test"), InvalidArgument);
  EXPECT_EQ(unlimited.used(Tier::kPinned), 0U);
}

TEST_F(BufferTest, DiskTierHasNoBuffers) {
  EXPECT_THAT([&] { Buffer(budget, Tier::kDisk, kHost, 8, "states"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("8 bytes on the disk tier")));
  EXPECT_EQ(budget.used(Tier::kDisk), 0U);
}

}  // namespace
}  // namespace sluiceway::test
