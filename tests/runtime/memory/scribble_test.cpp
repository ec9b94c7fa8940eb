// scribble(): fills in the eager-spill build, and does nothing in others.
#include "runtime/memory/scribble.h"

#include <gtest/gtest.h>

#include <array>

namespace sluiceway::test {
namespace {

TEST(ScribbleTest, FillsExactlyItsBytesWhereTheBuildAsksForIt) {
  std::array<std::byte, 9> bytes{};
  scribble(bytes.data() + 1, 7);
  const std::byte inside = scribbles() ? kScribble : std::byte{0};
  EXPECT_EQ(bytes[0], std::byte{0});
  for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(bytes[i], inside) << i;
  EXPECT_EQ(bytes[8], std::byte{0});
}

TEST(ScribbleTest, NothingToFillIsFine) { scribble(nullptr, 0); }

}  // namespace
}  // namespace sluiceway::test
