// TurnOrder: positions count the turns of nested loops, and first_round() is their inverse.
#include <gtest/gtest.h>

#include <random>

#include "runtime/engine/stream/weight_places.h"
#include "tests/support/ring_model.h"

namespace sluiceway::test {
namespace {

TEST(TurnOrderTest, TurnsGoByModuleThenDirectionThenUse) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  RingModel model(seed);
  model.add_random(20);
  const TurnOrder order(model.uses);
  for (const int directions : {1, 2, 5}) {
    std::uint64_t next = 0;
    for (const std::vector<int>& module : model.modules()) {
      for (int d = 0; d < directions; ++d) {
        for (const int use : module) EXPECT_EQ(order.position(use, d, directions), next++);
      }
    }
    for (std::uint64_t from = 0; from <= next; ++from) {
      for (int use = 0; use < 20; ++use) {
        int expected = 0;
        while (expected < directions && order.position(use, expected, directions) < from) {
          ++expected;
        }
        EXPECT_EQ(order.first_round(use, from, directions), expected);
      }
    }
  }
}

}  // namespace
}  // namespace sluiceway::test
