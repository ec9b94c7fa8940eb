// A new base and the log that made it, where a crash may follow the write of either.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/zo/scalar_log.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/log_summary.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class LogBaseTest : public testing::Test {
 protected:
  LogBaseTest() {
    ScalarLog log = ScalarLog::create(path.str(), shape, first, options);
    id = log.id();
    append_steps(log, 20);
  }
  ScalarLog open(const Base& base, const LogId& made_with = {},
                 Access access = Access::kReadWrite) {
    LogOptions how = options;
    how.access = access;
    return ScalarLog::open(path.str(), shape, {base, made_with}, how);
  }
  // Returns the replay that any log of these steps must give after `base`.
  static Replay expected(const LogShape& shape, const Base& base, std::uint64_t to) {
    LogHistory history({{}, shape, base});
    while (history.next_step() < to) history.apply(update_entry(shape, history.next_step()));
    return replay(history, base, 0, base.step, to);
  }

  Rng rng{20261123};
  LogShape shape = random_shape(rng, 2);
  Base first = random_base(rng, 1, 0), second = random_base(rng, 2, 15);
  LogOptions options{.busy_wait = std::chrono::milliseconds(0)};
  ScratchPath path;
  LogId id{};
};

TEST_F(LogBaseTest, AnnouncedAndNeverCommittedTheOldOneGoesOn) {
  {
    ScalarLog log = open(first);
    log.announce(second);
    EXPECT_EQ(log.base(), first);
    append_steps(log, 22);
    EXPECT_EQ(log.pending(0, 0, 22), expected(shape, first, 22));
  }
  ScalarLog log = open(first, id);
  EXPECT_EQ(log.pending(0, 0, 22), expected(shape, first, 22));
  // The arena may give the lost generation to other weights.
  const Base other = random_base(rng, 2, 22);
  log.announce(other);
  log.adopt(other);
  append_steps(log, 25);
  EXPECT_EQ(log.pending(0, 22, 25), expected(shape, other, 25));
}

TEST_F(LogBaseTest, AnnouncedAndCommittedPendingBeginsThere) {
  {
    ScalarLog log = open(first);
    log.announce(second);
  }
  ScalarLog log = open(second, id);
  EXPECT_EQ(log.base(), second);
  EXPECT_EQ(log.pending(0, 15, 20), expected(shape, second, 20));
  EXPECT_THROW(log.pending(0, 14, 20), InvalidArgument);
  append_steps(log, 30);
  EXPECT_EQ(log.pending(0, 15, 30), expected(shape, second, 30));
  EXPECT_EQ(log.history().bases(), (std::vector<Base>{first, second}));
}

TEST_F(LogBaseTest, CommittedAndNeverAnnouncedItIsNamedWithTheNextEntry) {
  const std::vector<std::byte> before = file_bytes(path.str());
  {
    const ScalarLog reader = open(second, id, Access::kRead);
    EXPECT_EQ(reader.pending(0, 15, 20), expected(shape, second, 20));
  }
  EXPECT_EQ(file_bytes(path.str()), before);
  {
    ScalarLog log = open(second, id);
    EXPECT_EQ(file_bytes(path.str()), before);
    EXPECT_EQ(log.pending(0, 15, 20), expected(shape, second, 20));
    append_steps(log, 21);
  }
  EXPECT_EQ(inspect_log(path.str()).bases, (std::vector<Base>{first, second}));
  EXPECT_EQ(inspect_log(path.str()).entries, 22U);
  EXPECT_EQ(open(second).pending(0, 15, 21), expected(shape, second, 21));
  EXPECT_EQ(open(first).pending(0, 0, 21), expected(shape, first, 21));
}

TEST_F(LogBaseTest, ClosingNamesItToo) {
  { ScalarLog log = open(second, id); }
  EXPECT_EQ(inspect_log(path.str()).bases, (std::vector<Base>{first, second}));
}

TEST_F(LogBaseTest, UnknownBaseThatAnotherLogOrNoneMadeIsRefused) {
  LogId other = id;
  other[3] ^= std::byte{1};
  EXPECT_THROW(open(second, other), InvalidArgument);
  EXPECT_THROW(open(second), InvalidArgument);
  Base old = second;
  old.generation = 1;
  EXPECT_THROW(open(old, id), InvalidArgument);
  EXPECT_EQ(open(second, id).base(), second);
}

TEST_F(LogBaseTest, BaseThatOutlivedTheLogsEndGoesOnAlone) {
  {
    ScalarLog log = open(first);
    log.announce(second);
    log.adopt(second);
    append_steps(log, 30);
  }
  const std::size_t entry = entry_bytes(shape);
  std::vector<std::byte> bytes = file_bytes(path.str());
  bytes[kLogHeaderBytes + 7 * entry] ^= std::byte{8};  // Step 7: 15 is lost with it.
  write_file(path.str(), bytes);
  {
    ScalarLog log = open(second, id);
    EXPECT_EQ(log.lost()->step, 7U);
    EXPECT_EQ(log.next_step(), 15U);
    EXPECT_EQ(log.history().first_step(), 15U);
    append_steps(log, 18);
    EXPECT_EQ(log.pending(0, 15, 18), expected(shape, second, 18));
    EXPECT_THROW(log.rollback(14), InvalidArgument);
    const ScratchPath branch;
    log.branch(17, branch.str());
    EXPECT_EQ(inspect_log(branch.str()).first_step, 15U);
    EXPECT_EQ(inspect_log(branch.str()).bases, std::vector<Base>{second});
  }
  EXPECT_EQ(open(second).pending(0, 15, 18), expected(shape, second, 18));
  EXPECT_THROW(open(first), InvalidArgument);  // Its line was abandoned, but is still there:
  EXPECT_EQ(inspect_log(path.str()).left_lines.at(0).next_step, 7U);
  for (const std::string& kept : files_beside(path.str(), ".lost.")) {
    std::filesystem::remove(kept);
  }
}

TEST_F(LogBaseTest, BaseOfALineThatWasLeftIsRefused) {
  {
    ScalarLog log = open(first);
    log.announce(second);
    log.adopt(second);
    EXPECT_THAT(
        [&] { log.rollback(14); },
        ThrowsMessage<InvalidArgument>(HasSubstr("expected 15, the step of the base in use")));
  }
  {
    ScalarLog log = open(first);  // The arena first returns to the base that it keeps.
    log.rollback(14);
    append_steps(log, 20);
  }
  EXPECT_THAT([&] { open(second, id); },
              ThrowsMessage<InvalidArgument>(HasSubstr("on this line or another")));
  ScalarLog log = open(first);
  log.restore(21);
  EXPECT_EQ(log.history().bases(), (std::vector<Base>{first, second}));
  log.adopt(second);
  EXPECT_THAT([&] { log.restore(36 - 8); },
              ThrowsMessage<InvalidArgument>(HasSubstr("does not have the base in use")));
  EXPECT_EQ(log.next_step(), 20U);
}

TEST_F(LogBaseTest, RollbackToABaseKeepsIt) {
  ScalarLog log = open(first);
  log.announce(second);
  log.adopt(second);
  log.rollback(15);
  EXPECT_EQ(log.base(), second);
  EXPECT_EQ(log.pending(0, 15, 15), Replay{});
  append_steps(log, 17);
  EXPECT_EQ(log.pending(0, 15, 17), expected(shape, second, 17));
}

TEST_F(LogBaseTest, RefusesBasesThatCannotBe) {
  ScalarLog log = open(first);
  EXPECT_THAT([&] { log.announce(random_base(rng, 2, 21)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("step 21, expected 0 to 20")));
  EXPECT_THAT([&] { log.announce(random_base(rng, 1, 20)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected above 1")));
  EXPECT_THAT([&] { log.adopt(second); },
              ThrowsMessage<InvalidArgument>(HasSubstr("announce it first")));
  log.announce(second);
  log.adopt(second);
  EXPECT_THROW(log.announce(random_base(rng, 3, 14)), InvalidArgument);
}

}  // namespace
}  // namespace sluiceway::test
