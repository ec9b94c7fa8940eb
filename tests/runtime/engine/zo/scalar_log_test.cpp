// ScalarLog on a file: appended entries are read back by every process that opens it later.
#include "runtime/engine/zo/scalar_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/log_summary.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class ScalarLogTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  ScalarLog create() { return ScalarLog::create(path.str(), shape, base, options); }
  ScalarLog open(Access access = Access::kReadWrite) {
    LogOptions how = options;
    how.access = access;
    return ScalarLog::open(path.str(), shape, {base, {}}, how);
  }

  Rng rng{20261123 + GetParam()};
  LogShape shape = random_shape(rng, GetParam());
  Base base = random_base(rng, 3, static_cast<std::uint64_t>(rng.below(1 << 20)));
  LogOptions options{.busy_wait = std::chrono::milliseconds(0)};
  ScratchPath path, other;
};

TEST_P(ScalarLogTest, WhatWasAppendedComesBack) {
  LogId id{};
  {
    ScalarLog log = create();
    id = log.id();
    EXPECT_EQ(log.next_step(), base.step);
    append_steps(log, base.step + 20);
  }
  {
    ScalarLog log = open();
    EXPECT_EQ(log.id(), id);
    EXPECT_EQ(log.base(), base);
    EXPECT_EQ(log.next_step(), base.step + 20);
    append_steps(log, base.step + 33);
  }
  const ScalarLog log = open(Access::kRead);
  EXPECT_EQ(log.next_step(), base.step + 33);
  EXPECT_EQ(difference(log.history()), "");
  EXPECT_FALSE(log.lost());
  EXPECT_EQ(std::filesystem::file_size(path.str()), kLogHeaderBytes + 33 * entry_bytes(shape));
  EXPECT_TRUE(files_beside(path.str(), ".").empty());
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    EXPECT_EQ(log.pending(group, base.step, base.step + 33),
              replay(log.history(), base, group, base.step, base.step + 33));
  }
}

TEST_P(ScalarLogTest, EmptyLogIsALogOfItsBase) {
  (void)create();
  const ScalarLog log = open();
  EXPECT_EQ(log.next_step(), base.step);
  EXPECT_EQ(log.pending(0, base.step, base.step), Replay{});
}

TEST_P(ScalarLogTest, LeftStepsStayAndARestoreComesBackToThem) {
  ScalarLog log = create();
  append_steps(log, base.step + 10);
  const std::vector<std::byte> before = file_bytes(path.str());
  const Replay old_line = log.pending(0, base.step, base.step + 10);
  log.rollback(base.step + 4);
  EXPECT_EQ(log.next_step(), base.step + 4);
  EXPECT_EQ(log.pending(0, base.step, base.step + 4),
            replay(log.history(), base, 0, base.step, base.step + 4));
  RunStep changed = run_step(shape, base.step + 4);
  changed.g.back() = 77;
  changed.non_finite = false;
  changed.rates[0].lr = 0.125;
  log.append(changed.scalars());
  append_steps(log, base.step + 8);
  const Replay new_line = log.pending(0, base.step, base.step + 8);
  EXPECT_NE(new_line.updates.at(5 * shape.directions - 1),
            old_line.updates.at(5 * shape.directions - 1));
  const std::vector<std::byte> after = file_bytes(path.str());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
  EXPECT_EQ(log.history().left_lines(), std::vector<std::uint64_t>{10});
  log.restore(10);
  EXPECT_EQ(log.pending(0, base.step, base.step + 10), old_line);
  EXPECT_EQ(log.history().left_lines(), (std::vector<std::uint64_t>{10, 15}));
  log.restore(15);
  EXPECT_EQ(log.pending(0, base.step, base.step + 8), new_line);
  append_steps(log, base.step + 9);
  EXPECT_THROW(log.rollback(base.step + 10), InvalidArgument);
  EXPECT_THROW(log.rollback(base.step - 1), InvalidArgument);
  EXPECT_THROW(log.restore(999), InvalidArgument);
  const ScalarLog again = open(Access::kRead);
  EXPECT_EQ(again.pending(0, base.step, base.step + 8), new_line);
  EXPECT_EQ(again.next_step(), base.step + 9);
}

TEST_P(ScalarLogTest, BranchHasTheLineAloneAndGoesItsOwnWay) {
  ScalarLog log = create();
  append_steps(log, base.step + 6);
  log.rollback(base.step + 3);
  append_steps(log, base.step + 9);
  const Base later = random_base(rng, 4, base.step + 5);
  log.announce(later);
  append_steps(log, base.step + 12);
  log.branch(base.step + 10, other.str());
  EXPECT_EQ(files_beside(other.str(), "."), std::vector<std::string>{});
  {
    ScalarLog branch = ScalarLog::open(other.str(), shape, {later, {}}, options);
    EXPECT_NE(branch.id(), log.id());
    EXPECT_EQ(branch.history().entries(), 11U);
    EXPECT_EQ(branch.history().bases(), (std::vector<Base>{base, later}));
    EXPECT_EQ(branch.next_step(), base.step + 10);
    EXPECT_EQ(difference(branch.history()), "");
    log.adopt(later);
    EXPECT_EQ(branch.pending(0, later.step, base.step + 10),
              log.pending(0, later.step, base.step + 10));
    append_steps(branch, base.step + 11);
  }
  EXPECT_EQ(log.next_step(), base.step + 12);
  // This base does not exist before `later`.
  const ScratchPath earlier;
  log.branch(base.step + 4, earlier.str());
  EXPECT_EQ(inspect_log(earlier.str()).bases, std::vector<Base>{base});
  try {
    log.branch(base.step, other.str());
    ADD_FAILURE() << "a file was replaced";
  } catch (const IoError& error) {
    EXPECT_EQ(error.error_number(), EEXIST);
  }
  EXPECT_EQ(inspect_log(other.str()).next_step, base.step + 11);
  EXPECT_THROW(log.branch(base.step + 13, earlier.str() + "x"), InvalidArgument);
}

TEST_P(ScalarLogTest, RefusedStepIsNotWritten) {
  ScalarLog log = create();
  append_steps(log, base.step + 2);
  const std::vector<std::byte> before = file_bytes(path.str());
  const auto refuses = [&](const std::function<void(RunStep&)>& spoil, const char* text) {
    RunStep run = run_step(shape, base.step + 2);
    spoil(run);
    EXPECT_THAT([&] { log.append(run.scalars()); },
                ThrowsMessage<InvalidArgument>(HasSubstr(text)));
    EXPECT_EQ(log.next_step(), base.step + 2);
    EXPECT_EQ(file_bytes(path.str()), before);
  };
  refuses([](RunStep& run) { run.g.back() = std::numeric_limits<float>::quiet_NaN(); },
          "if a loss is not finite, pass g = 0");
  refuses([](RunStep& run) { run.rates.back() = {0.5, 2}; }, "expected below 1");
  refuses([](RunStep& run) { run.rates.back() = {2, 2}; }, "2 x 2 = 4, expected below 1");
  refuses([](RunStep& run) { ++run.step; }, "expected step");
  refuses([](RunStep& run) { run.g.push_back(1); }, "directions, expected");
  refuses([](RunStep& run) { run.rates.pop_back(); }, "parameter groups, expected");
  refuses([](RunStep& run) { run.seeds.push_back(1); }, "seeds, expected");
  refuses(
      [](RunStep& run) {
        run.g.back() = 1e30F;
        run.rates.back().lr = 1e30;
        run.rates.back().weight_decay = 0;
      },
      "lower lr");
  append_steps(log, base.step + 3);
}

TEST_P(ScalarLogTest, GammaThatNoFloatHoldsIsRefusedAndANewBaseHelps) {
  ScalarLog log = create();
  RunStep run = run_step(shape, base.step);
  run.g.assign(shape.directions, 0);
  run.rates.assign(shape.groups, {1, 1 - 0x1p-40});
  for (; run.step < base.step + 3; ++run.step) log.append(run.scalars());
  EXPECT_THAT([&] { log.append(run.scalars()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("Gamma is 6.84228e-49")));
  const Base later = random_base(rng, 4, run.step);
  log.announce(later);
  EXPECT_THROW(log.append(run.scalars()), InvalidArgument);
  log.adopt(later);
  log.append(run.scalars());
  EXPECT_EQ(log.pending(0, later.step, run.step + 1).gamma, 0x1p-40F);
}

TEST_P(ScalarLogTest, SyncsAsOftenAsItWasTold) {
  options.sync_interval = std::chrono::milliseconds(0);
  {
    ScalarLog log = create();
    append_steps(log, base.step + 3);
    EXPECT_EQ(log.synced_entries(), 3U);
  }
  options.sync_interval = std::chrono::hours(1);
  ScalarLog log = open();
  append_steps(log, base.step + 5);
  EXPECT_EQ(log.synced_entries(), 0U);  // It does not know whether entries it found are synced.
  log.sync();
  EXPECT_EQ(log.synced_entries(), 5U);
  append_steps(log, base.step + 6);
  EXPECT_EQ(log.synced_entries(), 5U);
  log.rollback(base.step + 1);
  EXPECT_EQ(log.synced_entries(), 7U);
  log.announce(random_base(rng, 9, base.step));
  EXPECT_EQ(log.synced_entries(), 8U);
}

TEST_P(ScalarLogTest, SummaryCountsWhatThereIs) {
  ScalarLog log = create();
  append_steps(log, base.step + 40);
  log.rollback(base.step + 30);
  append_steps(log, base.step + 35);
  std::uint64_t non_finite = 0;
  for (std::uint64_t step = base.step; step < base.step + 35; ++step) {
    if (run_step(shape, step).non_finite) ++non_finite;
  }
  const LogSummary summary = inspect_log(path.str());  // While another process has it open.
  EXPECT_EQ(summary.header, log.history().header());
  EXPECT_EQ(summary.file_bytes, std::filesystem::file_size(path.str()));
  EXPECT_EQ(summary.bytes_per_entry, entry_bytes(shape));
  EXPECT_EQ(summary.entries, 46U);
  EXPECT_EQ(summary.updates, 45U);
  EXPECT_EQ(summary.first_step, base.step);
  EXPECT_EQ(summary.next_step, base.step + 35);
  EXPECT_EQ(summary.non_finite_updates, non_finite);
  EXPECT_EQ(summary.bases, std::vector<Base>{base});
  EXPECT_EQ(summary.gammas, gammas(log.history(), base, base.step + 35));
  ASSERT_EQ(summary.left_lines.size(), 1U);
  EXPECT_EQ(summary.left_lines[0].entries, 40U);
  EXPECT_EQ(summary.left_lines[0].next_step, base.step + 40);
  EXPECT_FALSE(summary.lost);
}

INSTANTIATE_TEST_SUITE_P(Directions, ScalarLogTest, testing::Range(1U, 9U));

}  // namespace
}  // namespace sluiceway::test
