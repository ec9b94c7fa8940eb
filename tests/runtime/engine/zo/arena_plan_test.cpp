// ArenaPlan: the places of weights, and the stores that it rejects.
#include "runtime/engine/zo/arena_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/budget.h"
#include "runtime/store/memory_io.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ArenaPlanTest, PiecesCoverEachWeightInChunksOfItsOwn) {
  Rng rng(20261123);
  for (int i = 0; i < 50; ++i) {
    const std::uint64_t chunk_bytes = kBlockBytes * static_cast<std::uint64_t>(1 + rng.below(20));
    std::vector<ArenaWeight> weights;
    for (std::int64_t w = 1 + rng.below(9); w > 0; --w) {
      const auto dtype = static_cast<DType>(rng.below(3));
      weights.push_back({"w" + std::to_string(w), 1 + rng.below(100'000), dtype, 0});
    }
    const ArenaPlan plan(weights, chunk_bytes);
    const Contents contents = plan.contents();
    std::map<std::pair<std::uint32_t, std::uint64_t>, int> used;
    std::size_t piece = 0;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      std::uint64_t at = 0;
      for (const ArenaPiece& found : plan.pieces_of(w)) {
        EXPECT_EQ(&found, &plan.pieces()[piece++]);
        EXPECT_EQ(found.weight, w);
        EXPECT_EQ(found.first, at);
        EXPECT_EQ(found.stored_bytes % kBlockBytes, 0U);
        EXPECT_LT(found.stored_bytes - found.bytes, kBlockBytes);
        EXPECT_LE(found.stored_bytes, contents.regions.at(found.chunk.region).chunk_bytes);
        EXPECT_LT(found.chunk.chunk, contents.regions.at(found.chunk.region).chunks);
        EXPECT_EQ(++used[std::pair(found.chunk.region, found.chunk.chunk)], 1);
        at += found.bytes;
      }
      EXPECT_EQ(at, weights[w].bytes());
      EXPECT_EQ(plan.stored_bytes(w), whole_blocks(at));
      const std::uint64_t room = plan.pieces_of(w).size() *
                                 contents.regions.at(plan.pieces_of(w)[0].chunk.region).chunk_bytes;
      EXPECT_LT(room, std::max(kBlockBytes + 1, 2 * weights[w].bytes()));
    }
    EXPECT_EQ(piece, plan.pieces().size());
    std::uint64_t chunks = 0;
    for (const RegionSpec& region : contents.regions) chunks += region.chunks;
    EXPECT_EQ(chunks, piece);
    EXPECT_EQ(plan.largest_chunk_bytes(), contents.regions.back().chunk_bytes);
  }
}

TEST(ArenaPlanTest, ReadBytesAreWholeBlocks) {
  const ArenaPlan plan({{"one", 1, DType::kF32, 0}, {"more", 4097, DType::kBF16, 0}},
                       2 * kBlockBytes);
  EXPECT_EQ(plan.stored_bytes(0), kBlockBytes);
  EXPECT_EQ(plan.stored_bytes(1), 3 * kBlockBytes);
  EXPECT_THROW((void)plan.stored_bytes(2), InvalidArgument);
}

TEST(ArenaPlanTest, RefusesWhatNoArenaHolds) {
  const auto refused = [](std::vector<ArenaWeight> weights, const char* why,
                          std::uint64_t chunk_bytes = kBlockBytes) {
    EXPECT_THAT([&] { ArenaPlan(weights, chunk_bytes); },
                ThrowsMessage<InvalidArgument>(HasSubstr(why)));
  };
  refused({}, "no weights");
  refused({{"", 1, DType::kF32, 0}}, "is empty or occurs twice");
  refused({{"a", 1, DType::kF32, 0}, {"a", 2, DType::kF32, 0}}, "\"a\" of a weight is empty or");
  refused({{"a", 0, DType::kF32, 0}}, "a has 0 elements");
  refused({{"a", 1, DType::kF32, 1024}}, "of group 1024, expected 0 to 1023");
  refused({{"a", 1, DType::kF32, -2}}, "of group -2");
  refused({{"a", 1, DType::kF32, 0}}, "chunks of 4095 bytes", 4095);
  refused({{"a", 1, DType::kF32, 0}}, "chunks of 0 bytes", 0);
}

TEST(ArenaPlanTest, NamesTheFirstDifferenceOfAStore) {
  const std::vector<ArenaWeight> weights{{"norm", 64, DType::kF32, 0},
                                         {"query", 5000, DType::kBF16, 1}};
  const ArenaPlan plan(weights, kBlockBytes);
  Budget budget = Budget::unlimited();
  const auto store_of = [&](const Contents& contents) {
    const Layout layout = new_layout(contents, {1});
    ChunkStore::Drives drives;
    drives.push_back(std::make_unique<Drive>(open_memory_io(budget, layout.drives[0].bytes, "m")));
    return ChunkStore::create(budget, std::move(drives), layout);
  };
  const auto store = store_of(plan.contents());
  plan.check(*store);
  const auto refused = [&](std::vector<ArenaWeight> expected, const char* why,
                           std::uint64_t chunk_bytes = kBlockBytes) {
    EXPECT_THAT([&] { ArenaPlan(expected, chunk_bytes).check(*store); },
                ThrowsMessage<InvalidArgument>(AllOf(
                    HasSubstr("weights of a zeroth-order run of another run"), HasSubstr(why))));
  };
  std::vector<ArenaWeight> other = weights;
  other[1].name = "key";
  refused(other, "weight 1 is query 5000 bf16 group 1, expected key 5000 bf16 group 1");
  other = weights;
  other[0].elements = 65;
  refused(other, "weight 0 is norm 64 f32 group 0, expected norm 65 f32 group 0");
  other = weights;
  other[1].dtype = DType::kF16;
  refused(other, "expected query 5000 f16 group 1");
  other = weights;
  other[1].group = ArenaWeight::kUntrained;
  refused(other, "expected query 5000 bf16 group -1");
  other = weights;
  other.pop_back();
  refused(other, "it has 2 weights, expected 1");
  refused(weights, "chunk_bytes is 4096, expected 8192", 2 * kBlockBytes);
  Contents another = plan.contents();
  another.catalogue.clear();
  EXPECT_THAT([&] { plan.check(*store_of(another)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("was made by another engine")));
}

}  // namespace
}  // namespace sluiceway::test
