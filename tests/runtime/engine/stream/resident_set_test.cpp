// choose_resident(): within the room, leaves out no weight that would fit, and spreads evenly.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/engine/stream/weight_places.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

TEST(ChooseResidentTest, FillsTheRoomAndNeverMore) {
  Rng rng(std::random_device{}());
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(rng.below(40)));
    std::uint64_t total = 0;
    for (std::uint64_t& b : bytes) total += b = static_cast<std::uint64_t>(1 + rng.below(1000));
    const auto room = static_cast<std::uint64_t>(rng.below(static_cast<std::int64_t>(total) + 100));
    const std::vector<bool> chosen = choose_resident(bytes, room);
    ASSERT_EQ(chosen.size(), bytes.size());
    std::uint64_t taken = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) taken += chosen[i] ? bytes[i] : 0;
    EXPECT_LE(taken, room);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_TRUE(chosen[i] || bytes[i] > room - taken);
    }
  }
}

TEST(ChooseResidentTest, EqualWeightsAreSpreadEvenly) {
  for (std::size_t every : {2U, 3U, 7U}) {
    const std::vector<std::uint64_t> bytes(every * 12, 100);
    const std::vector<bool> chosen = choose_resident(bytes, 1200);
    for (std::size_t first = 0; first < bytes.size(); first += every) {
      const auto begin = chosen.begin() + static_cast<std::ptrdiff_t>(first);
      EXPECT_EQ(std::count(begin, begin + static_cast<std::ptrdiff_t>(every), true), 1);
    }
  }
}

}  // namespace
}  // namespace sluiceway::test
