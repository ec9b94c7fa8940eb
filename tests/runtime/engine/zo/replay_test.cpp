// replay() against the recurrence that it factors, and bit by bit against its own formula.
#include "runtime/engine/zo/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/logged_run.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

LogHistory history_of(const LogShape& shape, const Base& base, std::uint64_t steps) {
  LogHistory history({{}, shape, base});
  for (std::uint64_t i = 0; i < steps; ++i) {
    history.apply(update_entry(shape, history.next_step()));
  }
  return history;
}

class ReplayTest : public testing::TestWithParam<std::uint32_t> {
 protected:
  Rng rng{20261123 + GetParam()};
  LogShape shape = random_shape(rng, GetParam());
  Base base = random_base(rng, 1, static_cast<std::uint64_t>(rng.below(1000)));
  static constexpr std::uint64_t steps = 61;
  LogHistory history = history_of(shape, base, steps);
  std::uint64_t end = base.step + steps;
};

// Returns z of one weight: any number will do.
double z_of(std::uint64_t step, std::uint32_t direction) {
  return Rng(step * 1031 + direction).normal();
}

TEST_P(ReplayTest, MakesTheThetaOfTheRecurrence) {
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    const double w = rng.normal();
    double theta = w, size = std::abs(w);
    for (std::uint64_t step = base.step; step < end; ++step) {
      const RunStep run = run_step(shape, step);
      const double lr = run.rates[group].lr;
      theta *= 1 - lr * run.rates[group].weight_decay;
      for (std::uint32_t d = 0; d < shape.directions; ++d) {
        const double change = lr * double{run.g[d]} / shape.directions * z_of(step, d);
        theta -= change;
        size += std::abs(change);
      }
    }
    const Replay found = replay(history, base, group, base.step, end);
    ASSERT_EQ(found.updates.size(), steps * shape.directions);
    double a = w;
    for (const ReplayedUpdate& one : found.updates) {
      a += double{one.scale} * z_of(one.step, one.direction);
    }
    // Each scale and Gamma was rounded to float once.
    EXPECT_NEAR(double{found.gamma} * a, theta, 2 * 0x1p-24 * size) << group;
  }
}

TEST_P(ReplayTest, HasTheBitsOfItsFormulaInOrder) {
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    const Replay found = replay(history, base, group, base.step, end);
    double gamma = 1;
    std::size_t at = 0;
    for (std::uint64_t step = base.step; step < end; ++step) {
      const RunStep run = run_step(shape, step);
      const volatile double product = run.rates[group].lr * run.rates[group].weight_decay;
      const volatile double factor = 1 - product;
      gamma *= factor;
      for (std::uint32_t d = 0; d < shape.directions; ++d, ++at) {
        const volatile double top = run.rates[group].lr * double{run.g[d]};
        const volatile double bottom = shape.directions * gamma;
        EXPECT_EQ(found.updates.at(at).step, step);
        EXPECT_EQ(found.updates[at].direction, d);
        EXPECT_EQ(std::bit_cast<std::uint32_t>(found.updates[at].scale),
                  std::bit_cast<std::uint32_t>(static_cast<float>(-top / bottom)));
      }
    }
    EXPECT_EQ(found.gamma, static_cast<float>(gamma));
    EXPECT_EQ(found.gamma == 1.0F, group % 2 == 1);  // No decay there.
  }
}

TEST_P(ReplayTest, OfPartsIsThatOfTheWhole) {
  const Replay whole = replay(history, base, 0, base.step, end);
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t cut = base.step + static_cast<std::uint64_t>(rng.below(steps + 1));
    Replay first = replay(history, base, 0, base.step, cut);
    const Replay rest = replay(history, base, 0, cut, end);
    EXPECT_EQ(first.updates.size(), (cut - base.step) * shape.directions);
    first.updates.insert(first.updates.end(), rest.updates.begin(), rest.updates.end());
    EXPECT_EQ(first.updates, whole.updates);
    EXPECT_EQ(rest.gamma, whole.gamma);
  }
}

TEST_P(ReplayTest, FromALaterBaseIsThatOfALogThatBeganThere) {
  const Base later = random_base(rng, 2, base.step + 23);
  history.apply(BaseEntry{later});
  const LogHistory fresh = history_of(shape, later, steps - 23);
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    EXPECT_EQ(replay(history, later, group, later.step, end),
              replay(fresh, later, group, later.step, end));
  }
  EXPECT_EQ(gammas(history, later, end), gammas(fresh, later, end));
}

TEST_P(ReplayTest, RefusesWhatThereIsNot) {
  const Base other = random_base(rng, 1, base.step);
  EXPECT_THAT([&] { replay(history, base, shape.groups, base.step, end); },
              ThrowsMessage<InvalidArgument>(HasSubstr("replay: group is")));
  EXPECT_THAT([&] { replay(history, other, 0, base.step, end); },
              ThrowsMessage<InvalidArgument>(HasSubstr("is not on the log's line")));
  EXPECT_THROW(replay(history, base, 0, base.step, end + 1), InvalidArgument);
  EXPECT_THROW(replay(history, base, 0, end, base.step), InvalidArgument);
  const Base later = random_base(rng, 2, base.step + 1);
  history.apply(BaseEntry{later});
  EXPECT_THROW(replay(history, later, 0, base.step, end), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Directions, ReplayTest, testing::Range(1U, 9U));

TEST(ReplayStepsTest, OfNothingIsNothing) {
  const Base base{{}, 0, 5};
  const LogHistory history = history_of({.groups = 2}, base, 0);
  EXPECT_EQ(replay(history, base, 1, 5, 5), Replay{});
}

TEST(ReplayStepsTest, CountToTheLargestStep) {
  const Base base{{}, 0, ~0ULL - 3};
  LogHistory history = history_of({.run_seed = 3}, base, 3);
  const Replay found = replay(history, base, 0, base.step, ~0ULL);
  ASSERT_EQ(found.updates.size(), 3U);
  EXPECT_EQ(found.updates.back().step, ~0ULL - 1);
  EXPECT_THAT([&] { history.apply(update_entry({.run_seed = 3}, ~0ULL)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a smaller step")));
}

TEST(DecayFactorTest, RefusesWhatIsNoDecay) {
  EXPECT_EQ(decay_factor(0.5, 0.25), 0.875);
  EXPECT_EQ(decay_factor(0, 1e300), 1);
  EXPECT_GT(decay_factor(1, 1 - 0x1p-53), 0);
  EXPECT_THAT([] { decay_factor(0.5, 2); },
              ThrowsMessage<InvalidArgument>(HasSubstr("0.5 x 2 = 1, expected below 1")));
  for (const double bad : {-1.0, kInf, kNaN}) {
    EXPECT_THROW(decay_factor(bad, 0.1), InvalidArgument) << bad;
    EXPECT_THROW(decay_factor(0.1, bad), InvalidArgument) << bad;
  }
}

TEST(UpdateScaleTest, RefusesWhatAFloatDoesNotHold) {
  EXPECT_EQ(update_scale(0.5, 3, 2, 0.25), -3.0F);
  EXPECT_EQ(update_scale(1, 0x1p-149F, 1, 1), -0x1p-149F);
  EXPECT_THAT([] { update_scale(1, 0x1p100F, 1, 0x1p-30); },
              ThrowsMessage<InvalidArgument>(HasSubstr("consolidate into a new base")));
  EXPECT_THROW(update_scale(1e300, 0x1p127F, 1, 1), InvalidArgument);
  EXPECT_THROW(update_scale(1, 0, 1, 0), InvalidArgument);
}

TEST(GammaTest, RefusesWhatIsNoNormalFloat) {
  EXPECT_EQ(gamma_as_float(0x1p-126), 0x1p-126F);
  EXPECT_THAT([] { gamma_as_float(0x1p-127); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the smallest normal float; consolidate")));
  EXPECT_THROW(gamma_as_float(0), InvalidArgument);
  EXPECT_THROW(gamma_as_float(kNaN), InvalidArgument);
}

}  // namespace
}  // namespace sluiceway::test
