// Kills a process while it runs on an arena and a log in files, most often while it moves to a new
// base. Whoever opens them next finds a whole base and all steps, and the resumed run has the bits
// of one that was never killed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/engine/zo/zo_arena.h"
#include "tests/support/arena_run.h"

namespace sluiceway::test {
namespace {

constexpr std::uint64_t kEvery = 3;  // Steps from a base to the next one.

// SLUICEWAY_KILLS=200 runs 200 kills.
int kills() {
  const char* const text = std::getenv("SLUICEWAY_KILLS");
  return text == nullptr ? 25 : std::atoi(text);
}

class ZoArenaKillTest : public testing::Test {
 protected:
  ZoArenaKillTest() {
    options.chunk_bytes = kArenaChunk;
    options.store.drives = {drive.str()};
    options.store.io = IoChoice::kPosix;
    const auto arena = ZoArena::create(budget, options, weights, fill_from(base));
    ScalarLog::create(log_path.str(), shape, arena->base().base, of_log);
  }

  // Reports each step and each new base, and before a new base that it begins.
  [[noreturn]] void run_until_killed(int say) {
    const auto tell = [say](char word) {
      if (::write(say, &word, 1) != 1) std::_Exit(4);
    };
    const auto arena = ZoArena::open(budget, options, weights);
    ScalarLog log = ScalarLog::open(log_path.str(), shape, arena->base(), of_log);
    for (;;) {
      if (log.next_step() - arena->base().base.step < kEvery) {
        append_steps(log, log.next_step() + 1);
        tell('s');
      } else {
        tell('c');
        const std::vector<std::byte> run_state(log.next_step() % 1000);
        arena->consolidate(log, {.run_state = run_state});
        tell('b');
      }
    }
  }

  // Kills the child; returns the number of steps that it reported, and its last word.
  std::uint64_t kill_one(Rng& rng, char& last) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      run_until_killed(ends[1]);
    }
    ::close(ends[1]);
    std::uint64_t steps = 0;
    const auto hear = [&] {
      if (::read(ends[0], &last, 1) != 1) return false;
      steps += last == 's' ? 1 : 0;
      return true;
    };
    for (std::int64_t words = 1 + rng.below(7); words > 0; --words) {
      EXPECT_TRUE(hear()) << "the child ended by itself";
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(1500)));
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    while (hear()) {
    }
    ::close(ends[0]);
    return steps;
  }

  // Advances to the base of `step` in a run that is never killed, one base after the other.
  void advance_to(std::uint64_t step) {
    for (; at < step; at += kEvery) {
      base = ReferenceTheta(shape, at, at + kEvery).of(weights, base, true);
    }
  }

  ScratchPath drive{memory_folder()}, log_path{memory_folder()};
  LogOptions of_log{.busy_wait = std::chrono::milliseconds(2000),
                    .sync_interval = std::chrono::hours(1)};
  Budget budget = Budget::unlimited();
  ArenaOptions options;
  std::vector<ArenaWeight> weights{{"one", 1, DType::kF32, 0},
                                   {"matrix", 3 * 4096 + 9, DType::kBF16, 1},
                                   {"frozen", 300, DType::kBF16, ArenaWeight::kUntrained},
                                   {"half", 501, DType::kF16, 0}};
  LogShape shape = arena_log_shape(1);
  WeightBytes base = random_bytes(weights, 20261123);
  std::uint64_t at = 0;  // The step of `base`.
};

TEST_F(ZoArenaKillTest, EveryOpeningHasAWholeBaseAndAllSteps) {
  Rng rng(20261123);
  std::uint64_t steps = 0;
  int in_between = 0;
  for (int i = 0; i < kills(); ++i) {
    char last = '?';
    const std::uint64_t said = steps + kill_one(rng, last);
    in_between += last == 'c' ? 1 : 0;
    const auto arena = ZoArena::open(budget, options, weights);
    ASSERT_NE(arena, nullptr);
    const ScalarLog log = ScalarLog::open(log_path.str(), shape, arena->base(), of_log);
    ASSERT_GE(log.next_step(), said);
    ASSERT_LE(log.next_step(), said + 1);  // The step being appended.
    ASSERT_EQ(difference(log.history()), "");
    steps = log.next_step();
    const std::uint64_t step = arena->base().base.step;
    ASSERT_EQ(step % kEvery, 0U);
    ASSERT_LE(steps - step, kEvery);
    ASSERT_GE(step, at);
    advance_to(step);
    ASSERT_EQ(difference(weights, read_all(*arena), base), "");
    ASSERT_EQ(arena->run_state().size(), step % 1000);
    expect_base_hash(*arena);
    const WeightBytes theta = ReferenceTheta(shape, step, steps).of(weights, base, false);
    ASSERT_EQ(difference(weights, exported(*arena, log, steps), theta), "");
  }
  EXPECT_GT(steps, static_cast<std::uint64_t>(kills()));
  EXPECT_GE(in_between, kills() * 3 / 10);  // 92 % and more, or the kills miss their purpose.
  std::printf("%d kills, %d while a new base was being made; %d steps\n", kills(), in_between,
              static_cast<int>(steps));
}

}  // namespace
}  // namespace sluiceway::test
