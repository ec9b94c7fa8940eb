// Weights are found once, in the pass in which they were kept, and the oldest make room.
#include "runtime/engine/offload/kept_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "kernels/base/error.h"

namespace sluiceway::test {
namespace {

constexpr std::size_t kBytes = 8192;

Budget::Limits host_limit(std::uint64_t bytes) {
  Budget::Limits limits{};
  limits[static_cast<std::size_t>(Tier::kHost)] = bytes;
  return limits;
}

std::vector<std::byte> weight(int value, std::size_t bytes = kBytes) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

class KeptWeightsTest : public testing::Test {
 protected:
  bool is_here(int chunk, int value, std::size_t bytes = kBytes) {
    std::vector<std::byte> into(bytes, std::byte{0xEE});
    const bool found = kept_.take(chunk, kept_.pass(), into);
    EXPECT_TRUE(into == weight(found ? value : 0xEE, bytes)) << "chunk " << chunk;
    return found;
  }

  Budget budget_{host_limit(3 * kBytes)};
  KeptWeights kept_{budget_, {.chunk_bytes = kBytes, .chunks = 3}};
};

TEST_F(KeptWeightsTest, AWeightIsTakenOnce) {
  kept_.put(7, weight(1));
  EXPECT_FALSE(is_here(8, 1));
  EXPECT_TRUE(is_here(7, 1));
  EXPECT_FALSE(is_here(7, 1));
}

TEST_F(KeptWeightsTest, TheOldestMakesRoomAndALaterReadCounts) {
  for (int chunk = 0; chunk < 3; ++chunk) kept_.put(chunk, weight(chunk));
  kept_.put(0, weight(9, 4096));  // It is now the newest.
  kept_.put(3, weight(3));        // In place of chunk 1.
  EXPECT_TRUE(is_here(0, 9, 4096));
  EXPECT_FALSE(is_here(1, 1));
  EXPECT_TRUE(is_here(2, 2));
  EXPECT_TRUE(is_here(3, 3));
}

TEST_F(KeptWeightsTest, AnotherPassIsAnotherWeight) {
  kept_.put(1, weight(1));
  const std::uint64_t pass = kept_.pass();
  kept_.begin_pass();
  EXPECT_FALSE(is_here(1, 1));
  kept_.put(1, weight(2));
  std::vector<std::byte> into(kBytes);
  EXPECT_FALSE(kept_.take(1, pass, into));
  EXPECT_TRUE(is_here(1, 2));
}

TEST_F(KeptWeightsTest, ManyThreadsPutAndTakeWholeWeights) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> into(kBytes);
      for (int i = 0; i < 500; ++i) {
        kept_.put((t + i) % 5, weight((t + i) % 5));
        const int other = i % 5;
        if (kept_.take(other, kept_.pass(), into)) {
          EXPECT_TRUE(into == weight(other));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(KeptWeightsTest, ItTakesItsRoomOfTheBudget) {
  EXPECT_EQ(budget_.used(Tier::kHost), 3 * kBytes);
  EXPECT_THROW(KeptWeights(budget_, {.chunk_bytes = kBytes, .chunks = 1}), OutOfMemory);
}

// Tensors of three, one, two and four chunks; the last but one is frozen.
TEST(KeptRoomTest, ItHoldsTheLargestRowOfBlocks) {
  constexpr std::int64_t kChunk = ChunkPlan::kStoredAlignment;
  const ChunkPlan plan(std::vector<std::int64_t>{3 * kChunk, kChunk, 2 * kChunk, 4 * kChunk},
                       kChunk);
  const std::vector<DType> weights(4, DType::kBF16);
  const std::vector<Streamed> streamed = {Streamed::kTrained, Streamed::kTrained, Streamed::kFrozen,
                                          Streamed::kTrained};
  StateStream::Types types;
  types.weights = weights;
  types.streamed = streamed;
  types.codec = StateCodec::k8Bit;
  const std::vector<std::vector<int>> blocks = {{0}, {1}, {2}, {3}};
  const KeptWeights::Room two = KeptWeights::room_for(plan, types, blocks, 2);
  EXPECT_EQ(two.chunk_bytes, 2 * kChunk);
  EXPECT_EQ(two.chunks, 4U);
  EXPECT_EQ(two.spares, 8 * 2 * kChunk);
  EXPECT_EQ(KeptWeights::room_for(plan, types, blocks, 9).chunks, 8U);
  types.codec = StateCodec::kFp32;  // Weights are copies of their masters.
  EXPECT_EQ(KeptWeights::room_for(plan, types, blocks, 2).chunks, 0U);
}

}  // namespace
}  // namespace sluiceway::test
