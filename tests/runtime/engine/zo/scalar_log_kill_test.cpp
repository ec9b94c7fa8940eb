// Kills a process while it appends, goes back, branches and moves to new bases. Whoever opens the
// log next finds all appended entries, and a base from which to continue.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "runtime/engine/zo/scalar_log.h"
#include "runtime/store/byte_stream.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/log_summary.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

// SLUICEWAY_KILLS=1000 runs 1000 kills.
int kills() {
  const char* const text = std::getenv("SLUICEWAY_KILLS");
  return text == nullptr ? 40 : std::atoi(text);
}

class LogKillTest : public testing::Test {
 protected:
  LogKillTest() {
    std::filesystem::create_directory(folder.str());
    const ScalarLog log = ScalarLog::create(file, shape, {}, options);
    commit({{}, log.id()});
  }

  // Stands for the arena: one file that is whole, before or after the commit.
  void commit(const ArenaBase& arena) const {
    ByteWriter out;
    out.put(arena.base.hash);
    out.put(arena.base.generation);
    out.put(arena.base.step);
    out.put(arena.made_with);
    write_file(arena_file + ".fresh", out.bytes());
    std::filesystem::rename(arena_file + ".fresh", arena_file);
  }
  ArenaBase arena() const {
    const std::vector<std::byte> bytes = file_bytes(arena_file);
    ByteReader fields(bytes, "arena");
    ArenaBase found;
    std::ranges::copy(fields.take(16), found.base.hash.begin());
    found.base.generation = fields.take<std::uint64_t>();
    found.base.step = fields.take<std::uint64_t>();
    std::ranges::copy(fields.take(16), found.made_with.begin());
    return found;
  }
  ScalarLog open() const { return ScalarLog::open(file, shape, arena(), options); }

  // Writes in one order or the other: both are sound, since open() asks the arena.
  void consolidate(ScalarLog& log, Rng& rng) const {
    Base base = random_base(rng, log.base().generation + 1, log.base().step);
    base.step += static_cast<std::uint64_t>(
        rng.below(static_cast<std::int64_t>(log.next_step() - log.base().step) + 1));
    // An abandoned announcement may have used the generation.
    base.generation = std::max(base.generation, log.history().greatest_generation() + 1);
    const bool arena_first = rng.below(2) == 1;
    if (arena_first) commit({base, log.id()});
    log.announce(base);
    if (!arena_first) commit({base, log.id()});
    log.adopt(base);
  }

  // Reports the number of entries after each one.
  [[noreturn]] void run_until_killed(int say, std::uint64_t seed) const {
    Rng rng(seed);
    ScalarLog log = open();
    for (;;) {
      const std::int64_t what = rng.below(24);
      if (what == 0) {
        consolidate(log, rng);
      } else if (what == 1 && log.next_step() > log.base().step) {
        log.rollback(log.next_step() - 1);
      } else if (what == 2) {
        log.branch(log.next_step(), folder.str() + "/branch" + std::to_string(rng.bits()));
      } else {
        append_steps(log, log.next_step() + 1);
      }
      const std::uint64_t entries = log.history().entries();
      if (::write(say, &entries, sizeof(entries)) != sizeof(entries)) std::_Exit(4);
    }
  }

  // Kills the child; returns the last number of entries that it reported.
  std::uint64_t kill_one(Rng& rng) const {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const std::uint64_t seed = rng.bits();
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      run_until_killed(ends[1], seed);
    }
    ::close(ends[1]);
    std::uint64_t said = 0, next = 0;
    EXPECT_EQ(::read(ends[0], &said, sizeof(said)), 8) << "the child ended by itself";
    std::this_thread::sleep_for(std::chrono::microseconds(rng.below(30'000)));
    ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    while (::read(ends[0], &next, sizeof(next)) == 8) said = next;
    ::close(ends[0]);
    return said;
  }

  // Removes the branches; returns the names of broken ones, if any.
  std::string broken_branches() const {
    std::string broken;
    for (const std::string& branch : files_beside(folder.str() + "/branch", "")) {
      const bool temporary = branch.find(".new.") != std::string::npos;
      if (!temporary) {
        const LogSummary summary = inspect_log(branch);
        if (summary.lost || summary.updates != summary.next_step) broken += branch;
      }
      std::filesystem::remove(branch);
    }
    return broken;
  }

  LogShape shape{.run_seed = 20261123, .groups = 2, .directions = 1};
  LogOptions options{.sync_interval = std::chrono::milliseconds(5)};
  ScratchPath folder;
  std::string file = folder.str() + "/log", arena_file = folder.str() + "/arena";
};

TEST_F(LogKillTest, EveryOpeningFindsAllThatWasAppended) {
  Rng rng(20261123);
  std::uint64_t entries = 0;
  std::size_t bases = 0;
  int owed = 0;
  for (int i = 0; i < kills() && !HasFailure(); ++i) {
    const std::uint64_t said = kill_one(rng);
    const LogSummary in_file = inspect_log(file);
    EXPECT_GE(said, entries);
    EXPECT_GE(in_file.entries, said);
    EXPECT_LE(in_file.entries, said + 1);  // The one being written.
    EXPECT_EQ(in_file.lost ? in_file.lost->entries : 0, 0U);
    const ScalarLog log = open();
    EXPECT_EQ(log.base(), arena().base);
    EXPECT_EQ(difference(log.history()), "");
    EXPECT_EQ(log.pending(1, log.base().step, log.next_step()).updates.size(),
              log.next_step() - log.base().step);
    EXPECT_EQ(broken_branches(), "");
    owed += log.history().entries() > in_file.entries ? 1 : 0;
    entries = in_file.entries;
    bases = log.history().bases().size();
  }
  EXPECT_GT(entries, static_cast<std::uint64_t>(kills()));
  EXPECT_GT(bases, 1U);
  std::printf("%d kills, %d between arena and log; %llu entries, %zu bases\n", kills(), owed,
              static_cast<unsigned long long>(entries), bases);
}

}  // namespace
}  // namespace sluiceway::test
