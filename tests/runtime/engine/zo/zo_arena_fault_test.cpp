// ZoArena where drives fail, fill up or hold foreign data, and where a caller breaks off: nothing
// was changed, and the failed call can be repeated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/zo/zo_arena.h"
#include "tests/support/arena_run.h"
#include "tests/support/fault_io.h"
#include "tests/support/power_cut_io.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Thrown by a caller's own code; no error of this project.
struct Stop {};

class ZoArenaFaultTest : public testing::Test {
 protected:
  ZoArenaFaultTest() {
    options.chunk_bytes = kArenaChunk;
    options.store.opener = [this](Budget& of, const Contents& contents, std::span<std::byte>) {
      const Layout layout = new_layout(contents, {1});
      const bool is_new = medium == nullptr;
      if (is_new) medium = std::make_shared<PowerCutIo::Medium>(layout.drives[0].bytes);
      auto around =
          std::make_unique<FaultIo>(std::make_unique<PowerCutIo>(medium, PowerCutIo::Options()));
      faults = around.get();
      Drive::Options patient;
      patient.first_pause = std::chrono::milliseconds(0);
      patient.report = [](const std::string&) {};
      ChunkStore::Drives drives;
      drives.push_back(std::make_unique<Drive>(std::move(around), patient));
      return is_new ? ChunkStore::create(of, std::move(drives), layout)
                    : ChunkStore::open(of, std::move(drives));
    };
    back_to_the_beginning();
    before = arena->base().base;
  }

  bool must_be_opened_again() {
    const AlignedBytes memory(arena->read_bytes(0));
    return outcome_of_read(*arena, 0, memory.span()).find("reopen the store") != std::string::npos;
  }
  // Makes all later requests transfer in full.
  void heal(IoKind kind) { faults->shorten(kind, FaultIo::kAlways, SIZE_MAX); }
  void reopen() {
    arena.reset();
    arena = ZoArena::open(budget, options, weights);
    ASSERT_NE(arena, nullptr);
  }
  // Checks for the old base with all updates; expect_unchanged_and_repeatable() then consolidates,
  // as if nothing had happened.
  void expect_unchanged() {
    EXPECT_EQ(arena->base().base, before);
    EXPECT_EQ(log->base(), before);
    EXPECT_EQ(arena->run_state().size(), 0U);
    arena->commit({});  // Would commit staged chunks too.
    ASSERT_EQ(difference(weights, read_all(*arena), first), "");
    ASSERT_EQ(difference(weights, exported(*arena, *log, kSteps), theta), "");
  }
  void expect_unchanged_and_repeatable() {
    ASSERT_NO_FATAL_FAILURE(expect_unchanged());
    arena->consolidate(*log, {});
    EXPECT_EQ(arena->base().base.step, kSteps);
    EXPECT_EQ(log->base(), arena->base().base);
    ASSERT_EQ(difference(weights, read_all(*arena), second), "");
  }
  void back_to_the_beginning() {
    arena.reset();
    log.reset();
    medium.reset();
    std::filesystem::remove(log_path.str());
    arena = ZoArena::create(budget, options, weights, fill_from(first));
    log.emplace(ScalarLog::create(log_path.str(), shape, arena->base().base, quick));
    append_steps(*log, kSteps);
  }

  static constexpr std::uint64_t kSteps = 3;
  ScratchPath log_path{memory_folder()};
  LogOptions quick{.busy_wait = std::chrono::milliseconds(0),
                   .sync_interval = std::chrono::hours(1)};
  Budget budget = Budget::unlimited();
  ArenaOptions options;
  std::shared_ptr<PowerCutIo::Medium> medium;
  FaultIo* faults = nullptr;
  std::vector<ArenaWeight> weights = arena_weights();
  LogShape shape = arena_log_shape();
  const WeightBytes first = random_bytes(weights, 20261123);
  const WeightBytes theta = ReferenceTheta(shape, 0, kSteps).of(weights, first, false);
  const WeightBytes second = ReferenceTheta(shape, 0, kSteps).of(weights, first, true);
  std::unique_ptr<ZoArena> arena;
  std::optional<ScalarLog> log;
  Base before;
};

TEST_F(ZoArenaFaultTest, EveryWriteThatFailsForGood) {
  for (const int error : {EIO, ENOSPC}) {
    for (std::uint64_t which = 1;; ++which) {
      back_to_the_beginning();
      const std::uint64_t written = faults->submitted(IoKind::kWrite);
      faults->fail(IoKind::kWrite, {written + which, UINT64_MAX / 2}, error);
      try {
        arena->consolidate(*log, {});
        ASSERT_GT(which, 10U);
        break;  // It has fewer writes than that.
      } catch (const IoError& said) {
        ASSERT_EQ(said.error_number(), error);
      }
      heal(IoKind::kWrite);
      if (!must_be_opened_again()) {
        ASSERT_NO_FATAL_FAILURE(expect_unchanged());
      }
      // Reopening the arena, which is required if the superblock may be missing, frees the slots
      // that were given up.
      log.reset();
      reopen();
      log.emplace(ScalarLog::open(log_path.str(), shape, arena->base(), quick));
      ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
    }
  }
}

TEST_F(ZoArenaFaultTest, ChunkThatCannotBeWrittenGoesToASpare) {
  faults->fail(IoKind::kWrite, {faults->submitted(IoKind::kWrite) + 3, 1}, EIO);
  arena->consolidate(*log, {});
  EXPECT_EQ(arena->store().relocated(), 1U);
  EXPECT_EQ(difference(weights, read_all(*arena), second), "");
  reopen();
  EXPECT_EQ(difference(weights, read_all(*arena), second), "");
}

TEST_F(ZoArenaFaultTest, EveryReadThatFails) {
  const std::size_t pieces = ArenaPlan(weights, kArenaChunk).pieces().size();
  for (std::uint64_t which = 1; which <= pieces; ++which) {
    back_to_the_beginning();
    faults->fail(IoKind::kRead, {faults->submitted(IoKind::kRead) + which, UINT64_MAX / 2}, EIO);
    EXPECT_THAT([&] { arena->consolidate(*log, {}); },
                ThrowsMessage<IoError>(AllOf(HasSubstr("arena: "), HasSubstr("of region "))));
    heal(IoKind::kRead);
    ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
  }
}

TEST_F(ZoArenaFaultTest, CompletionsInAnyOrder) {
  faults->reorder(20261123);
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
}

TEST_F(ZoArenaFaultTest, FlushThatFailsLeavesTheOldBase) {
  faults->fail_flush(FaultIo::kAlways, EIO);
  EXPECT_THROW(arena->consolidate(*log, {}), IoError);
  EXPECT_EQ(log->base(), before);
  reopen();
  log.reset();
  log.emplace(ScalarLog::open(log_path.str(), shape, arena->base(), quick));
  EXPECT_EQ(log->history().bases().size(), 2U);  // One was announced but never committed.
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
  EXPECT_EQ(arena->base().base.generation, 3U);
}

TEST_F(ZoArenaFaultTest, BrokenOffBetweenTwoPieces) {
  const std::size_t pieces = ArenaPlan(weights, kArenaChunk).pieces().size();
  std::uint64_t all_bytes = 0;
  for (const ArenaWeight& weight : weights) all_bytes += weight.bytes();
  for (std::size_t after = 0; after <= pieces; ++after) {
    back_to_the_beginning();
    std::size_t calls = 0;
    std::uint64_t last = 0;
    const auto progress = [&](std::uint64_t done, std::uint64_t all) {
      EXPECT_EQ(all, all_bytes);
      EXPECT_TRUE(calls == 0 ? done == 0 : done > last);
      last = done;
      if (calls++ == after) throw Stop();
    };
    EXPECT_THROW(arena->consolidate(*log, {.progress = progress}), Stop);
    EXPECT_EQ(last == all_bytes, after == pieces);
    EXPECT_EQ(log->history().bases().size(), 1U);
    ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
  }
}

TEST_F(ZoArenaFaultTest, LogThatTakesNothingLeavesTheArena) {
  log.reset();
  LogOptions reading = quick;
  reading.access = Access::kRead;
  log.emplace(ScalarLog::open(log_path.str(), shape, arena->base(), reading));
  EXPECT_THAT([&] { arena->consolidate(*log, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("opened for reading")));
  log.reset();
  log.emplace(ScalarLog::open(log_path.str(), shape, arena->base(), quick));
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
}

TEST_F(ZoArenaFaultTest, DamagedChunkIsNamedWithItsWeight) {
  // In the middle of the embedding's third chunk, wherever that is.
  const std::size_t at = 2 * kArenaChunk + 100;
  const auto damaged = std::span(first[1]).subspan(at, 64);
  const auto place = std::search(medium->begin(), medium->end(), damaged.begin(), damaged.end());
  ASSERT_NE(place, medium->end());
  *place ^= std::byte{4};
  reopen();
  const auto named = AllOf(HasSubstr("arena: embedding: store: chunk"), HasSubstr("checksum"));
  const AlignedBytes memory(arena->read_bytes(1));
  EXPECT_THAT(outcome_of_read(*arena, 1, memory.span()), named);
  const AlignedBytes other(arena->read_bytes(2));
  EXPECT_EQ(outcome_of_read(*arena, 2, other.span()), "");
  EXPECT_THAT([&] { arena->consolidate(*log, {}); }, ThrowsMessage<Corrupt>(named));
  EXPECT_EQ(arena->base().base, before);
  *place ^= std::byte{4};
  reopen();
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
}

TEST_F(ZoArenaFaultTest, LogOfAnotherBaseIsRefused) {
  const ScratchPath other_path{memory_folder()};
  Base other = before;
  other.hash[0] ^= std::byte{1};
  ScalarLog stranger = ScalarLog::create(other_path.str(), shape, other, quick);
  append_steps(stranger, 2);
  const auto both = AllOf(HasSubstr(to_hex(other.hash)), HasSubstr(to_hex(before.hash)));
  EXPECT_THAT([&] { arena->consolidate(stranger, {}); }, ThrowsMessage<InvalidArgument>(both));
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
}

TEST_F(ZoArenaFaultTest, OtherModelIsRefusedAndAnArenaIsNotMadeTwice) {
  EXPECT_THAT([&] { ZoArena::create(budget, options, weights, fill_from(first)); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("arena: one already exists"), HasSubstr(to_hex(before.hash)))));
  std::vector<ArenaWeight> other = weights;
  other[3].dtype = DType::kF16;
  EXPECT_THAT([&] { ZoArena::open(budget, options, other); },
              ThrowsMessage<InvalidArgument>(HasSubstr("weight 3 is chunk 4096 bf16 group 1, "
                                                       "expected chunk 4096 f16 group 1")));
  const AlignedBytes memory(arena->read_bytes(1) - kBlockBytes);
  EXPECT_THAT([&] { arena->read(1, memory.span(), [](std::exception_ptr) { FAIL(); }); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("embedding is read into a buffer of 24576 bytes"),
                        HasSubstr("expected 28672"))));
}

TEST_F(ZoArenaFaultTest, BufferThatDoesNotFitTheBudgetIsRefusedAndNothingIsChanged) {
  const std::uint64_t used = budget.used(Tier::kHost);
  arena.reset();
  Budget small({Budget::kUnlimited, used + kPassBuffers * kArenaChunk, Budget::kUnlimited,
                Budget::kUnlimited});
  arena = ZoArena::open(small, options, weights);
  EXPECT_THROW(arena->consolidate(*log, {}), OutOfMemory);
  EXPECT_EQ(difference(weights, read_all(*arena), first), "");
  arena.reset();
  Budget enough({Budget::kUnlimited, used + kPassBuffers * kArenaChunk + kBlockBytes,
                 Budget::kUnlimited, Budget::kUnlimited});
  arena = ZoArena::open(enough, options, weights);
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
  arena.reset();
}

TEST_F(ZoArenaFaultTest, MakingThatWasBrokenOffIsMadeAgain) {
  arena.reset();
  medium.reset();
  const auto broken = [](std::size_t weight, std::uint64_t, std::span<std::byte> into) {
    std::ranges::fill(into, std::byte{7});
    if (weight == 4) throw Stop();
  };
  EXPECT_THROW(ZoArena::create(budget, options, weights, broken), Stop);
  EXPECT_EQ(ZoArena::open(budget, options, weights), nullptr);
  arena = ZoArena::create(budget, options, weights, fill_from(first));
  ASSERT_NO_FATAL_FAILURE(expect_unchanged_and_repeatable());
}

TEST(ZoArenaFilesTest, NothingThereIsNoArena) {
  Budget budget = Budget::unlimited();
  ArenaOptions options;
  const ScratchPath drive(memory_folder()), other(memory_folder());
  options.store.drives = {drive.str()};
  const std::vector<ArenaWeight> weights{{"w", 100, DType::kBF16, 0}};
  EXPECT_EQ(ZoArena::open(budget, options, weights), nullptr);
  EXPECT_FALSE(std::filesystem::exists(drive.str()));
  const WeightBytes bytes = random_bytes(weights, 1);
  {
    const auto arena = ZoArena::create(budget, options, weights, fill_from(bytes));
    EXPECT_EQ(budget.used(Tier::kDisk), std::filesystem::file_size(drive.str()));
  }
  EXPECT_NE(ZoArena::open(budget, options, weights), nullptr);
  options.store.drives.push_back(other.str());
  EXPECT_THAT([&] { ZoArena::open(budget, options, weights); },
              ThrowsMessage<InvalidArgument>(HasSubstr(
                  concat("1 of 2 drives are there, but ", other.str(), " holds no store"))));
}

}  // namespace
}  // namespace sluiceway::test
