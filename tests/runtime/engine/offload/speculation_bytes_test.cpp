// The cost of updates before their step: bytes of drive and link by formula, host memory of the
// ring alone, and no wait without end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/offload/offload_engine.h"
#include "runtime/store/memory_io.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/offload_reference.h"
#include "tests/support/slow_io.h"

namespace sluiceway::test {
namespace {

const std::vector<TensorSpec> kModel{{"embedding", {100, 123}, DType::kBF16},
                                     {"norm1", {64}, DType::kF32},
                                     {"query", {64, 64}, DType::kBF16},
                                     {"norm2", {300}, DType::kF32},
                                     {"key", {64, 96}, DType::kF32}};

struct Case {
  std::string name;
  std::uint64_t read = 12, written = 12;  // Per element, without parked weights.
  std::uint64_t park_bytes = 0;
  double max_norm = 0;
  bool redo = false;
};

class SpeculationBytesTest : public testing::TestWithParam<Case> {};

TEST_P(SpeculationBytesTest, AStepReadsAndWritesWhatTheFormulaSays) {
  OffloadOptions options = small_chunk_options();
  options.policy = UpdatePolicy::kSpeculative;
  options.gate.promised_backwards = 1;
  options.gate.max_norm = GetParam().max_norm;
  options.redo = GetParam().redo;
  options.park_bytes = GetParam().park_bytes;
  OffloadEngine engine(options, kModel);
  OffloadModel model(kModel, 2);
  engine.begin(model.tensors());
  engine.take_stats();
  const bool is_clipped = run_step(engine, model, 1, 1).clip_factor < 1;
  engine.synchronize();
  const OffloadStats stats = engine.take_stats();
  EXPECT_EQ(stats.speculative_steps, is_clipped ? 0U : 1U);
  EXPECT_EQ(stats.redone_steps, is_clipped ? 1U : 0U);

  std::uint64_t unparked = 0, weights = 0, elems = 0, taken = 0;
  bool is_full = is_clipped;  // An update made again uploads at once.
  for (const PlannedChunk& chunk : engine.plan().chunks()) {
    std::uint64_t needed = 0;
    for (const ChunkPiece& piece : chunk.pieces) {
      const auto count = static_cast<std::uint64_t>(piece.elems);
      const std::uint64_t bytes = count * size_bytes(model.spec(piece.tensor).dtype);
      needed += (bytes + 63) / 64 * 64;
      weights += bytes;
      elems += count;
    }
    taken += needed;
    is_full = is_full || taken > options.park_bytes;
    if (is_full && !is_clipped) unparked += static_cast<std::uint64_t>(chunk.stored_elems);
  }
  const auto stored = static_cast<std::uint64_t>(engine.plan().stored_elems());
  EXPECT_EQ(stats.disk_read, GetParam().read * stored + 4 * unparked);
  EXPECT_EQ(stats.disk_written, GetParam().written * stored);
  EXPECT_EQ(stats.use.d2h_bytes, 2 * elems);
  EXPECT_EQ(stats.use.h2d_bytes, weights);
}

INSTANTIATE_TEST_SUITE_P(Ways, SpeculationBytesTest,
                         testing::Values(Case{"AllParked", 12, 12, 1U << 20U},
                                         Case{"SomeParked", 12, 12, 20000},
                                         Case{"NoneParked", 12, 12},
                                         Case{"NotClipped", 12, 14, 1U << 20U, 1e6},
                                         Case{"KeptForAnotherFactor", 12, 14, 1U << 20U, 0, true},
                                         Case{"Clipped", 12 + 14, 14 + 12, 1U << 20U, 0.5}),
                         [](const auto& tested) { return tested.param.name; });

TEST(SpeculationRoomTest, ParkedWeightsAreHostMemoryThatTheBudgetHasLeft) {
  OffloadOptions options = small_chunk_options();
  options.policy = UpdatePolicy::kSpeculative;
  const auto used = [&] { return OffloadEngine(options, kModel).budget().used(Tier::kHost); };
  const std::uint64_t without = used();
  options.park_bytes = 20000;
  const std::uint64_t with = used();
  EXPECT_GT(with, without);
  EXPECT_LE(with, without + options.park_bytes);
  options.park_bytes = Budget::kUnlimited;
  EXPECT_GT(used(), with);
  options.lanes.limits[static_cast<std::size_t>(Tier::kHost)] = with;
  EXPECT_EQ(used(), with);
  const ScratchPath drive;
  options.store.drives = {drive.str()};
  options.policy = UpdatePolicy::kSpill;
  const std::uint64_t on_disk = used();
  options.park_bytes = 0;
  EXPECT_EQ(used(), on_disk);
}

// The ring holds two chunks; one step has chunks of one tensor, of several, and of tensors that
// cross compressed.
TEST(SpeculationRoomTest, TheLeastRingIsNeverWaitedForInVain) {
  std::vector<TensorSpec> specs;
  for (const char* const name : {"a", "b", "c", "d"}) {
    specs.push_back({name, {512, 500}, DType::kBF16, true});
    specs.push_back({std::string(name) + " bias", {500}, DType::kF32});
    specs.push_back({std::string(name) + " whole", {512, 300}, DType::kBF16});
  }
  for (const int batches : {1, 2}) {  // With two, only compressed ones update early.
    OffloadOptions options = small_chunk_options();
    options.cores.codec.name = "block_random";
    options.chunk_elems = 64 * ChunkPlan::kStoredAlignment;
    options.gate.max_norm = 1e6;
    options.gate.promised_backwards = batches;
    OffloadModel expected(specs, 7);
    OffloadEngine plain(options, specs);
    plain.begin(expected.tensors());
    for (std::int64_t step = 1; step <= 2; ++step) run_step(plain, expected, step, batches);
    plain.synchronize();
    options.policy = UpdatePolicy::kSpeculative;
    options.lanes.d2h = options.lanes.h2d = {0.5, 20};
    options.gradient_room = 1U << 19U;
    options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)] =
        std::uint64_t{batches == 1 ? 4600U : 6648U} << 10U;
    for (const Order order : {Order::kEdf, Order::kFcfs, Order::kPaper, Order::kBarrier}) {
      options.lanes.order = order;
      OffloadModel model(specs, 7);
      OffloadEngine engine(options, specs);
      engine.begin(model.tensors());
      for (std::int64_t step = 1; step <= 2; ++step) run_step(engine, model, step, batches);
      engine.synchronize();
      EXPECT_EQ(difference(model, expected), "") << to_string(order) << " of " << batches;
      EXPECT_EQ(engine.take_stats().speculative_steps, 2U);
    }
  }
}

// Room for two cores, a ring of two chunks, a slow drive: the remaining chunks of a weight must not
// wait behind weights that the next forward needs earlier.
TEST(SpeculationRoomTest, WeightsOfManyChunksDoNotOvertakeEachOther) {
  std::vector<TensorSpec> specs;
  for (const char* const name : {"a", "b", "c", "d"}) {
    specs.push_back({name, {512, 1024}, DType::kBF16, true});
  }
  OffloadOptions options = small_chunk_options();
  options.cores.codec.name = "block_random";
  options.policy = UpdatePolicy::kSpeculative;
  options.gate.promised_backwards = 1;
  options.chunk_elems = 32 * ChunkPlan::kStoredAlignment;
  options.lanes.limits[static_cast<std::size_t>(Tier::kPinned)] = std::uint64_t{3} << 20U;
  options.store.opener = [](Budget& budget, const Contents& contents, std::span<std::byte>) {
    const Layout layout = new_layout(contents, {1});
    ChunkStore::Drives drives;
    drives.push_back(std::make_unique<Drive>(std::make_unique<SlowIo>(
        open_memory_io(budget, layout.drives[0].bytes, "slow"), 3, std::chrono::milliseconds(5))));
    return ChunkStore::create(budget, std::move(drives), layout);
  };
  OffloadEngine engine(options, specs);
  OffloadModel model(specs, 8);
  engine.begin(model.tensors());
  engine.take_stats();
  engine.expect(request_of(model).hyper, kStepFactor);
  OffloadGradients gradients(model, 1, 0);
  for (int t = model.size(); t-- > 0;) {
    gradients.add_to(engine, t);
    while (engine.take_stats().use.d2h_bytes == 0) {  // Until its core has crossed.
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_FALSE(engine.step(request_of(model)).skipped);
  engine.synchronize();
  EXPECT_EQ(engine.take_stats().speculative_steps, 1U);
}

}  // namespace
}  // namespace sluiceway::test
