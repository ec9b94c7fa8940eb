// Lines, returns and bases of a log's history, compared with a model that copies whole lines.
#include "runtime/engine/zo/log_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Makes update number n, whose g is n so that it differs from all others.
UpdateEntry numbered(std::uint64_t step, std::size_t number) {
  return {step, false, {}, {static_cast<float>(number)}, {{1, 1}}};
}

struct Model {
  struct Line {
    std::uint64_t first = 0;
    std::vector<std::size_t> updates;
    std::uint64_t next() const { return first + updates.size(); }
    friend bool operator==(const Line&, const Line&) = default;
  };
  struct Known {
    Base base;
    Line until;  // The line whose theta it holds.
  };

  Line line;
  std::vector<Line> after;  // The line after each entry; the first is before all entries.
  std::vector<Known> known;
  std::size_t updates = 0;

  static Line cut(Line from, std::uint64_t step) {
    from.updates.resize(step - from.first);
    return from;
  }
  std::vector<Base> bases() const {
    std::vector<Base> found;
    for (const Known& one : known) {
      if (one.base.step < line.first || one.base.step > line.next()) continue;
      if (cut(line, one.base.step) == one.until) found.push_back(one.base);
    }
    return found;
  }
};

class LogHistoryTest : public testing::TestWithParam<int> {
 protected:
  Rng rng{static_cast<std::uint64_t>(GetParam())};
  Base first = random_base(rng, 1, 100);
  LogHistory history{LogHeader{{}, {}, first}};
  Model model{{100, {}}, {{100, {}}}, {{first, {100, {}}}}, 0};

  std::uint64_t below(std::uint64_t bound) {
    return static_cast<std::uint64_t>(rng.below(static_cast<std::int64_t>(bound)));
  }

  void update() {
    history.apply(numbered(model.line.next(), model.updates));
    model.line.updates.push_back(model.updates++);
  }
  void announce() {
    const bool beyond = below(8) == 0;
    const std::uint64_t step = beyond ? model.line.next() + 1 + below(5)
                                      : model.line.first + below(model.line.updates.size() + 1);
    const Base base = random_base(rng, 2 + model.known.size(), step);
    history.apply(BaseEntry{base});
    if (beyond) model.line = {step, {}};
    model.known.push_back({base, Model::cut(model.line, step)});
  }
  void go_back() {
    const std::uint64_t entries = below(2) == 0 ? history.entries() : below(model.after.size());
    const Model::Line& from = model.after[entries];
    const std::uint64_t step = from.first + below(from.updates.size() + 1);
    history.apply(ReturnEntry{step, entries});
    model.line = Model::cut(from, step);
  }
  void expect_equal() {
    EXPECT_EQ(history.entries(), model.after.size() - 1);
    EXPECT_EQ(history.updates(), model.updates);
    EXPECT_EQ(history.first_step(), model.line.first);
    EXPECT_EQ(history.next_step(), model.line.next());
    for (std::size_t i = 0; i < model.line.updates.size(); ++i) {
      const std::uint64_t step = model.line.first + i;
      EXPECT_EQ(history.update(step).step, step);
      EXPECT_EQ(history.update(step).g[0], static_cast<float>(model.line.updates[i]));
    }
    EXPECT_EQ(history.bases(), model.bases());
    for (const Model::Known& one : model.known) {
      const auto bases = model.bases();
      EXPECT_EQ(history.has_base(one.base), std::ranges::find(bases, one.base) != bases.end());
      EXPECT_EQ(history.base_anywhere(one.base.hash), one.base);
    }
    const std::uint64_t entries = below(model.after.size());
    EXPECT_EQ(history.next_step_after(entries), model.after[entries].next());
  }
};

TEST_P(LogHistoryTest, IsThatOfAModelThatCopiesLines) {
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const std::uint64_t what = below(12);
    if (what == 0) {
      announce();
    } else if (what == 1) {
      go_back();
    } else {
      update();
    }
    model.after.push_back(model.line);
    expect_equal();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LogHistoryTest, testing::Range(1, 9));

class RefusedEntryTest : public testing::Test {
 protected:
  RefusedEntryTest() {
    for (std::size_t i = 0; i < 5; ++i) history.apply(numbered(i, i));
  }
  void refuses(const LogEntry& entry, const char* text) {
    EXPECT_THAT([&] { history.check(entry); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
    EXPECT_THROW(history.apply(entry), InvalidArgument);
    EXPECT_EQ(history.entries(), 5U);
    EXPECT_EQ(history.next_step(), 5U);
    EXPECT_EQ(history.bases().size(), 1U);
  }
  static UpdateEntry with(float g, GroupRate rate, bool non_finite = false) {
    return {5, non_finite, {}, {g}, {rate}};
  }
  LogHistory history{LogHeader{}};
};

TEST_F(RefusedEntryTest, StepThatDoesNotFollow) {
  refuses(numbered(6, 6), "update of step 6, expected step 5");
  refuses(numbered(4, 6), "update of step 4, expected step 5");
}

TEST_F(RefusedEntryTest, GThatIsNotFinite) {
  refuses(with(std::numeric_limits<float>::quiet_NaN(), {1, 1}), "g of direction 0 in step 5 is");
  refuses(with(std::numeric_limits<float>::infinity(), {1, 1}), "is inf, expected a finite number");
  refuses(with(1, {1, 1}, true), "is marked as not finite, but no g is 0");
  EXPECT_NO_THROW(history.check(with(0, {1, 1}, true)));
  EXPECT_NO_THROW(history.check(with(0, {1, 1})));
}

TEST_F(RefusedEntryTest, RatesThatAreNone) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  for (const double lr : {-1.0, kNaN, std::numeric_limits<double>::infinity()}) {
    refuses(with(1, {lr, 1}), "lr of step 5 is");
  }
  for (const double decay : {0.0, -0.5, 1.5, kNaN}) {
    refuses(with(1, {1, decay}), "the factor 1 - lr wd of step 5 is");
  }
}

TEST_F(RefusedEntryTest, OtherCountsThanTheLogs) {
  refuses(UpdateEntry{5, false, {}, {1, 2}, {{1, 1}}}, "has 2 directions, expected 1");
  refuses(UpdateEntry{5, false, {}, {1}, {}}, "has 0 parameter groups, expected 1");
  refuses(UpdateEntry{5, false, {7}, {1}, {{1, 1}}}, "has 1 seeds, expected 0");
}

TEST_F(RefusedEntryTest, ReturnToWhatNeverWas) {
  refuses(ReturnEntry{0, 6}, "return to entry 6, expected at most 5");
  refuses(ReturnEntry{4, 3}, "return to step 4, which the line of 3 entries does not have");
  refuses(ReturnEntry{6, 5}, "it ends at step 5");
}

TEST_F(RefusedEntryTest, BaseBeforeItsLine) {
  history = LogHistory(LogHeader{{}, {}, {{}, 0, 7}});
  EXPECT_THAT(
      [&] {
        history.check(BaseEntry{{{}, 1, 6}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("expected step 7 or later")));
  EXPECT_THROW((void)history.update(7), InvalidArgument);
}

}  // namespace
}  // namespace sluiceway::test
