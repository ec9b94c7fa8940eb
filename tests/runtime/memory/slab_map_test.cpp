// SlabMap against a byte-by-byte reference.
#include "runtime/memory/slab_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace sluiceway::test {
namespace {

TEST(SlabMapTest, TakesTheFirstRangeThatIsLongEnough) {
  SlabMap map(100);
  EXPECT_EQ(map.allocate(30, 1), 0U);
  EXPECT_EQ(map.allocate(20, 1), 30U);
  EXPECT_EQ(map.allocate(50, 1), 50U);
  map.release(0, 30);
  map.release(50, 50);
  EXPECT_EQ(map.allocate(31, 1), 50U);
  EXPECT_EQ(map.allocate(30, 1), 0U);
}

TEST(SlabMapTest, FullMapGivesNothing) {
  SlabMap map(64);
  EXPECT_EQ(map.allocate(65, 1), std::nullopt);
  EXPECT_EQ(map.allocate(64, 1), 0U);
  EXPECT_EQ(map.allocate(1, 1), std::nullopt);
  EXPECT_EQ(map.largest_free_bytes(), 0U);
  EXPECT_EQ(SlabMap(0).allocate(1, 1), std::nullopt);
}

TEST(SlabMapTest, NeighboursJoinFromBelowFromAboveAndFromBothSides) {
  SlabMap map(40);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(map.allocate(10, 1));
  map.release(0, 10);
  map.release(10, 10);  // Joins below.
  EXPECT_EQ(map.largest_free_bytes(), 20U);
  map.release(30, 10);
  EXPECT_EQ(map.largest_free_bytes(), 20U);
  map.release(20, 10);  // Joins both sides.
  EXPECT_EQ(map.largest_free_bytes(), 40U);
  ASSERT_EQ(map.allocate(40, 1), 0U);
  map.release(20, 20);
  map.release(0, 20);  // Joins above.
  EXPECT_EQ(map.largest_free_bytes(), 40U);
}

TEST(SlabMapTest, WhatAnAlignmentSkipsStaysFree) {
  SlabMap map(100);
  EXPECT_EQ(map.allocate(3, 1), 0U);
  EXPECT_EQ(map.allocate(16, 32), 32U);
  EXPECT_EQ(map.allocate(29, 1), 3U);  // Between them, to the byte.
  EXPECT_EQ(map.allocate(37, 64), std::nullopt);
  EXPECT_EQ(map.allocate(36, 64), 64U);
  EXPECT_EQ(map.allocate(16, 16), 48U);
  EXPECT_EQ(map.largest_free_bytes(), 0U);
}

TEST(SlabMapTest, AgreesWithAByteMapOverManySteps) {
  constexpr std::size_t kBytes = 257;
  std::mt19937 random(20240611);
  SlabMap map(kBytes);
  std::vector<bool> taken(kBytes, false);
  std::vector<std::pair<std::size_t, std::size_t>> held;
  const auto first_fit = [&](std::size_t bytes,
                             std::size_t alignment) -> std::optional<std::size_t> {
    for (std::size_t at = 0; at + bytes <= kBytes; at += alignment) {
      const auto begin = taken.begin() + static_cast<std::ptrdiff_t>(at);
      if (std::none_of(begin, begin + static_cast<std::ptrdiff_t>(bytes),
                       [](bool b) { return b; })) {
        return at;
      }
    }
    return std::nullopt;
  };
  const auto mark = [&](std::size_t offset, std::size_t bytes, bool value) {
    for (std::size_t i = 0; i < bytes; ++i) taken[offset + i] = value;
  };
  for (int step = 0; step < 5000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      const std::size_t bytes = 1 + random() % 41;
      const std::size_t alignment = std::size_t{1} << random() % 7;
      const auto offset = map.allocate(bytes, alignment);
      ASSERT_EQ(offset, first_fit(bytes, alignment)) << "step " << step;
      if (!offset) continue;
      mark(*offset, bytes, true);
      held.emplace_back(*offset, bytes);
    } else {
      std::swap(held[random() % held.size()], held.back());
      const auto [offset, bytes] = held.back();
      held.pop_back();
      map.release(offset, bytes);
      mark(offset, bytes, false);
    }
  }
}

}  // namespace
}  // namespace sluiceway::test
