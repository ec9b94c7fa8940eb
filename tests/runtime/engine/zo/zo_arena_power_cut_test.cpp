// Cuts the power at any write or flush of an arena that moves to a new base; the log beside it
// keeps any part of its unsynced bytes. They open at the old base or the new one, theta of every
// step follows from that base, and the resumed run ends like one that was never cut.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/zo/zo_arena.h"
#include "tests/support/arena_run.h"
#include "tests/support/power_cut_io.h"

namespace sluiceway::test {
namespace {

using Medium = PowerCutIo::Medium;

// SLUICEWAY_POWER_CUTS=100 runs that many seeds.
std::uint64_t seeds() {
  const char* const text = std::getenv("SLUICEWAY_POWER_CUTS");
  return text == nullptr ? 3 : std::strtoull(text, nullptr, 10);
}

// New bases after steps 2, 4 and 6, and one more step.
constexpr std::uint64_t kEvery = 2, kBases = 3, kSteps = kEvery * kBases + 1;

class ZoArenaPowerCutTest : public testing::Test {
 protected:
  ZoArenaPowerCutTest() {
    options.chunk_bytes = kArenaChunk;
    options.store.opener = [this](Budget& of, const Contents& contents, std::span<std::byte>) {
      const Layout layout = new_layout(contents, {1});
      const bool is_new = medium == nullptr;
      if (is_new) medium = std::make_shared<Medium>(layout.drives[0].bytes);
      auto io = std::make_unique<PowerCutIo>(medium, cut);
      power = io.get();
      Drive::Options patient;
      patient.first_pause = std::chrono::milliseconds(0);
      patient.read_tries = 1;
      ChunkStore::Drives drives;
      drives.push_back(std::make_unique<Drive>(std::move(io), patient));
      return is_new ? ChunkStore::create(of, std::move(drives), layout)
                    : ChunkStore::open(of, std::move(drives));
    };
    bases.push_back(random_bytes(weights, 20261123));
    for (std::uint64_t b = 0; b < kBases; ++b) {
      bases.push_back(
          ReferenceTheta(shape, kEvery * b, kEvery * (b + 1)).of(weights, bases.back(), true));
    }
    auto arena = ZoArena::create(budget, options, weights, fill_from(bases[0]));
    ScalarLog::create(log_path.str(), shape, arena->base().base, options_of_log);
    arena.reset();
    made = *medium;
    made_log = file_bytes(log_path.str());
  }

  std::unique_ptr<ZoArena> open() { return ZoArena::open(budget, options, weights); }

  // Runs from wherever it is to the end. `synced`: entries of the log that a power cut leaves.
  void run(ZoArena& arena, std::uint64_t& synced) {
    ScalarLog log = ScalarLog::open(log_path.str(), shape, arena.base(), options_of_log);
    try {
      while (log.next_step() < kSteps || arena.base().base.step < kEvery * kBases) {
        if (log.next_step() - arena.base().base.step < kEvery) {
          append_steps(log, log.next_step() + 1);
          if (log.next_step() % 2 == 1) arena.commit(std::vector<std::byte>(log.next_step()));
        } else {
          const std::vector<std::byte> run_state(100 + log.next_step());
          arena.consolidate(log, {.step = arena.base().base.step + kEvery, .run_state = run_state});
        }
      }
    } catch (const IoError&) {
    }
    synced = log.synced_entries();
  }

  // Checks that every opening finds a whole state.
  void expect_whole(std::uint64_t least_step) {
    const auto arena = open();
    ASSERT_NE(arena, nullptr);
    const Base base = arena->base().base;
    ASSERT_EQ(base.step % kEvery, 0U);
    ASSERT_GE(base.step, least_step);
    ASSERT_LE(base.step, kEvery * kBases);
    const WeightBytes& expected = bases[base.step / kEvery];
    ASSERT_EQ(difference(weights, read_all(*arena), expected), "");
    expect_base_hash(*arena);
    const std::size_t run = arena->run_state().size();
    const std::uint64_t steps = run >= 100 ? run - 100 : run;
    EXPECT_TRUE(steps == 0 || (steps >= base.step && steps <= base.step + kEvery)) << run;
    LogOptions reading = options_of_log;
    reading.access = Access::kRead;
    const ScalarLog log = ScalarLog::open(log_path.str(), shape, arena->base(), reading);
    EXPECT_EQ(difference(log.history()), "");
    for (std::uint64_t step = base.step; step <= log.next_step(); ++step) {
      const WeightBytes theta = ReferenceTheta(shape, base.step, step).of(weights, expected, false);
      ASSERT_EQ(difference(weights, exported(*arena, log, step), theta), "");
    }
  }

  // Keeps some of the unsynced bytes, perhaps a partial entry.
  void cut_log(std::uint64_t synced, Rng& rng) const {
    std::vector<std::byte> bytes = file_bytes(log_path.str());
    const std::uint64_t least = kLogHeaderBytes + synced * entry_bytes(shape);
    ASSERT_LE(least, bytes.size());
    bytes.resize(least + static_cast<std::uint64_t>(
                             rng.below(static_cast<std::int64_t>(bytes.size() - least) + 1)));
    write_file(log_path.str(), bytes);
  }

  void back_to_the_beginning() {
    medium = std::make_shared<Medium>(made);
    write_file(log_path.str(), made_log);
  }

  void cut_and_resume(std::uint64_t seed, std::uint64_t dies_at) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", power goes at operation " << dies_at);
    back_to_the_beginning();
    Rng rng(seed * 1000 + dies_at);
    std::uint64_t synced = 0, committed = 0;
    cut = {.seed = seed, .dies_at = dies_at};
    {
      const auto arena = open();
      run(*arena, synced);
      committed = arena->base().base.step;
    }
    cut = {.seed = seed + 1000};
    ASSERT_NO_FATAL_FAILURE(cut_log(synced, rng));
    ASSERT_NO_FATAL_FAILURE(expect_whole(committed));
    const auto arena = open();
    run(*arena, synced);
    ASSERT_EQ(arena->base().base.step, kEvery * kBases);
    ASSERT_EQ(difference(weights, read_all(*arena), bases.back()), "");
    ++cuts;
  }

  ScratchPath log_path{memory_folder()};
  // Syncs only where it must.
  LogOptions options_of_log{.busy_wait = std::chrono::milliseconds(0),
                            .sync_interval = std::chrono::hours(1)};
  Budget budget = Budget::unlimited();
  ArenaOptions options;
  std::shared_ptr<Medium> medium;
  PowerCutIo::Options cut{};
  PowerCutIo* power = nullptr;
  // Few and small, because there are many cuts.
  std::vector<ArenaWeight> weights{{"one", 1, DType::kF32, 0},
                                   {"matrix", 4096 + 9, DType::kBF16, 1},
                                   {"frozen", 300, DType::kBF16, ArenaWeight::kUntrained},
                                   {"half", 501, DType::kF16, 0}};
  LogShape shape = arena_log_shape(1);
  std::vector<WeightBytes> bases;  // The bases of a run that is never cut, in order.
  Medium made;
  std::vector<std::byte> made_log;
  int cuts = 0;
};

TEST_F(ZoArenaPowerCutTest, AtEveryWriteAndFlush) {
  back_to_the_beginning();
  std::uint64_t operations = 0, synced = 0;
  {
    const auto arena = open();
    run(*arena, synced);
    operations = power->operations();
    ASSERT_EQ(difference(weights, read_all(*arena), bases.back()), "");
  }
  ASSERT_GT(operations, kBases * 8);
  for (std::uint64_t seed = 1; seed <= seeds(); ++seed) {
    for (std::uint64_t at = 1; at <= operations; ++at) {
      ASSERT_NO_FATAL_FAILURE(cut_and_resume(seed, at));
    }
  }
  std::printf("%d cuts, at %d operations\n", cuts, static_cast<int>(operations));
}

}  // namespace
}  // namespace sluiceway::test
