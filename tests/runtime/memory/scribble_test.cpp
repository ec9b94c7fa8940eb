// scribble(): fills memory in an eager-spill run, and does nothing in others.
#include "runtime/memory/scribble.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

namespace sluiceway::test {
namespace {

TEST(ScribbleTest, FillsExactlyItsBytesWhereTheRunAsksForIt) {
  std::array<std::byte, 9> bytes{};
  scribble(bytes.data() + 1, 7);
  const std::byte inside = scribbles() ? kScribble : std::byte{0};
  EXPECT_EQ(bytes[0], std::byte{0});
  for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(bytes[i], inside) << i;
  EXPECT_EQ(bytes[8], std::byte{0});
}

// If a run asked for it in a build without it, the tests of that run would check nothing.
TEST(ScribbleTest, EveryRunThatAsksForItGetsIt) {
  EXPECT_EQ(scribbles(), asks_for_scribbles(std::getenv("SLUICEWAY_EAGER_SPILL")));
}

TEST(ScribbleTest, NothingAnEmptyTextAndZeroDoNotAskForIt) {
  for (const char* no : {static_cast<const char*>(nullptr), "", "0"}) {
    EXPECT_FALSE(asks_for_scribbles(no)) << (no == nullptr ? "not set" : no);
  }
  for (const char* yes : {"1", "ON", "00", "01"}) EXPECT_TRUE(asks_for_scribbles(yes)) << yes;
}

TEST(ScribbleTest, NothingToFillIsFine) { scribble(nullptr, 0); }

}  // namespace
}  // namespace sluiceway::test
