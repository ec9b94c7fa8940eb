// Every element of every tensor is in exactly one chunk, and little of a chunk is unused.
#include "runtime/engine/offload/chunk_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/base/error.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kElems = 16 * ChunkPlan::kStoredAlignment;

void expect_whole(const ChunkPlan& plan, const std::vector<std::int64_t>& tensors) {
  std::vector<std::int64_t> seen(tensors.size());
  for (std::size_t c = 0; c < plan.chunks().size(); ++c) {
    const PlannedChunk& chunk = plan.chunks()[c];
    std::int64_t end = 0;
    for (const ChunkPiece& piece : chunk.pieces) {
      const auto tensor = static_cast<std::size_t>(piece.tensor);
      EXPECT_EQ(piece.first, seen[tensor]) << "in order, without a gap";
      EXPECT_GT(piece.elems, 0);
      EXPECT_GE(piece.at, end);
      EXPECT_EQ(piece.at % ChunkPlan::kPieceAlignment, 0);
      end = piece.at + piece.elems;
      seen[tensor] += piece.elems;
      EXPECT_THAT(plan.of_tensor(piece.tensor), testing::Contains(static_cast<int>(c)));
    }
    EXPECT_EQ(chunk.elems, end);
    EXPECT_GE(chunk.stored_elems, chunk.elems);
    EXPECT_LE(chunk.stored_elems, plan.chunk_elems());
    EXPECT_LT(chunk.stored_elems - chunk.elems, ChunkPlan::kStoredAlignment);
    EXPECT_EQ(chunk.stored_elems % ChunkPlan::kStoredAlignment, 0);
  }
  EXPECT_EQ(seen, tensors);
}

TEST(ChunkPlanTest, HoldsEveryElementOnce) {
  Rng rng(20261122);
  for (int run = 0; run < 200; ++run) {
    std::vector<std::int64_t> tensors;
    for (std::int64_t i = rng.below(40); i >= 0; --i) {
      tensors.push_back(1 + rng.below(rng.below(2) == 0 ? 3000 : 4 * kElems));
    }
    expect_whole(ChunkPlan(tensors, kElems), tensors);
  }
}

TEST(ChunkPlanTest, LargeTensorsHaveChunksOfTheirOwnAsEqualAsCanBe) {
  const std::vector<std::int64_t> tensors{100, kElems + 1, 200, kElems / 2, 3 * kElems};
  const ChunkPlan plan(tensors, kElems);
  expect_whole(plan, tensors);
  EXPECT_THAT(plan.of_tensor(0), ElementsAre(0));
  EXPECT_THAT(plan.of_tensor(1), ElementsAre(1, 2));
  EXPECT_THAT(plan.of_tensor(2), ElementsAre(0)) << "beside the other small one";
  EXPECT_THAT(plan.of_tensor(3), ElementsAre(3));
  EXPECT_THAT(plan.of_tensor(4), ElementsAre(4, 5, 6));
  EXPECT_LT(plan.chunks()[1].elems - plan.chunks()[2].elems, 2 * ChunkPlan::kStoredAlignment);
}

TEST(ChunkPlanTest, ALayerOfAModelWastesLessThanAPercent) {
  std::vector<std::int64_t> tensors;
  for (int layer = 0; layer < 4; ++layer) {
    for (const std::int64_t elems : {4096L, 4096L * 4096, 1024L * 4096, 11008L * 4096, 4096L}) {
      tensors.push_back(elems);
    }
  }
  const ChunkPlan plan(tensors);
  expect_whole(plan, tensors);
  EXPECT_LT(static_cast<double>(plan.stored_elems()),
            1.01 * static_cast<double>(plan.tensor_elems()));
}

TEST(ChunkPlanTest, NamesWhatCannotBePlaced) {
  EXPECT_TRUE(ChunkPlan({}).chunks().empty());
  const std::vector<std::int64_t> empty{5, 0};
  EXPECT_THAT([&] { ChunkPlan plan(empty); },
              ThrowsMessage<InvalidArgument>(HasSubstr("tensor 1 has 0 elements")));
  EXPECT_THAT([&] { ChunkPlan plan(empty, 1000); },
              ThrowsMessage<InvalidArgument>(HasSubstr("multiple of 2048")));
}

}  // namespace
}  // namespace sluiceway::test
