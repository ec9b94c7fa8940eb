// arena_footprint() agrees with the reservations of an arena of the same weights.
#include <gtest/gtest.h>

#include "runtime/engine/zo/zo_arena.h"
#include "tests/support/arena_run.h"

namespace sluiceway::test {
namespace {

TEST(ArenaFootprintTest, IsWhatAnArenaReserves) {
  const std::vector<ArenaWeight> weights = arena_weights();
  const WeightBytes bytes = random_bytes(weights, 5);
  const ArenaFootprint found = arena_footprint(weights, kArenaChunk);
  const ScratchPath path(memory_folder());
  Budget budget = Budget::unlimited();
  ArenaOptions options;
  options.chunk_bytes = kArenaChunk;
  options.store.drives.push_back(path.str());
  const auto arena = ZoArena::create(budget, options, weights, fill_from(bytes));
  EXPECT_EQ(budget.peak(Tier::kDisk), found.store_bytes);
  EXPECT_EQ(budget.peak(Tier::kHost), found.table_bytes + found.pass_bytes);
  std::uint64_t read = 0;
  for (std::size_t w = 0; w < weights.size(); ++w) read += arena->read_bytes(w);
  EXPECT_EQ(found.base_bytes, read);
  EXPECT_EQ(found.largest_bytes, arena->read_bytes(1));
  EXPECT_GT(found.store_bytes, 2 * found.base_bytes);
}

}  // namespace
}  // namespace sluiceway::test
