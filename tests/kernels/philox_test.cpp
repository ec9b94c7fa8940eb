// Philox against the known answers of [Salmon 2011], and the stream mapping against its definition.
#include "kernels/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr NoiseKey kKey{0x0123456789ABCDEFU, 0x1122334455667788U, 0xFEDCBA9876543210U, 7};

// The vectors "philox4x32 10" of Random123's kat_vectors file.
TEST(PhiloxTest, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627E8D5U, 0xE169C58DU, 0xBC57AC4CU, 0x9B00DBD8U}));
  EXPECT_EQ(philox4x32_10({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}),
            (PhiloxCounter{0x408F276DU, 0x41C83B0EU, 0xA20BC7C6U, 0x6D5451FDU}));
  EXPECT_EQ(philox4x32_10({0x243F6A88U, 0x85A308D3U, 0x13198A2EU, 0x03707344U},
                          {0xA4093822U, 0x299F31D0U}),
            (PhiloxCounter{0xD16CFE09U, 0x94FDCCEBU, 0x5001E420U, 0x24126EA1U}));
}

TEST(NoiseKeyTest, EveryFieldChangesTheStream) {
  std::set<std::uint64_t> seen;
  const auto first_64_bits = [](const NoiseKey& key) {
    return noise_word(key, 0) | std::uint64_t{noise_word(key, 1)} << 32;
  };
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    seen.insert(first_64_bits({kKey.seed ^ flip, kKey.step, kKey.tensor, kKey.purpose}));
    seen.insert(first_64_bits({kKey.seed, kKey.step ^ flip, kKey.tensor, kKey.purpose}));
    seen.insert(first_64_bits({kKey.seed, kKey.step, kKey.tensor ^ flip, kKey.purpose}));
  }
  for (int bit = 0; bit < 32; ++bit) {
    seen.insert(first_64_bits({kKey.seed, kKey.step, kKey.tensor, kKey.purpose ^ (1U << bit)}));
  }
  EXPECT_EQ(seen.size(), 3 * 64 + 32U);
}

TEST(NoiseKeyTest, StreamIsFrozen) {  // A change here breaks the resumption of every saved run.
  EXPECT_EQ(philox_key(NoiseKey{}), (PhiloxKey{0x6627E8D5U, 0xE169C58DU}));
  EXPECT_EQ(noise_word({1, 2, 3, 4}, 0), 547721691U);
  EXPECT_EQ(noise_word({1, 2, 3, 4}, (std::uint64_t{1} << 40) + 77), 1535278795U);
}

TEST(StableHashTest, IsFrozen) {
  EXPECT_EQ(stable_hash(""), 0x2D06800538D394C2U);
  EXPECT_EQ(stable_hash("model.layers.0.self_attn.q_proj.weight"), 7952803823783006164U);
}

class FillBitsTest : public BackendTest {};

// Starts and lengths around the group of 64 words, and an index whose block number needs 33 bits.
constexpr std::uint64_t kFirsts[] = {0, 1, 63, 64, 127, 128, 129, (std::uint64_t{1} << 34) - 67};
constexpr std::size_t kCounts[] = {0, 1, 2, 61, 64, 67, 128, 131, 1021};

TEST_P(FillBitsTest, Words32FollowTheDefinitionAtEveryStartAndLength) {
  for (const std::uint64_t first : kFirsts) {
    for (const std::size_t count : kCounts) {
      GuardedArray<std::uint32_t> out(count, 1);
      on_backend::fill_bits(kKey, first, out.span());
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], noise_word(kKey, first + i));
      ASSERT_TRUE(out.guards_intact());
    }
  }
}

TEST_P(FillBitsTest, Halves16FollowTheDefinitionAtEveryStartAndLength) {
  for (const std::uint64_t first : kFirsts) {
    for (const std::size_t count : kCounts) {
      GuardedArray<std::uint16_t> out(count, 3);
      on_backend::fill_bits(kKey, first, out.span());
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], noise_16(kKey, first + i));
      ASSERT_TRUE(out.guards_intact());
    }
  }
}

// Each of the 16 bits is one about half of the time: allows 6 standard deviations at 2^16 draws.
TEST_P(FillBitsTest, EveryBitPositionIsBalanced) {
  constexpr int kDraws = 1 << 16;
  std::vector<std::uint16_t> bits(kDraws);
  on_backend::fill_bits(kKey, 0, std::span<std::uint16_t>(bits));
  for (int position = 0; position < 16; ++position) {
    int ones = 0;
    for (const std::uint16_t b : bits) ones += (b >> position) & 1;
    EXPECT_NEAR(ones, kDraws / 2, 6 * 128) << "bit " << position;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FillBitsTest, testing::ValuesIn(built_backends("philox")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
