// StepGate: norm and clip of many parts, and the effect of commit, drop and a wrong forecast on
// payloads.
#include "runtime/engine/step_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "tests/runtime/schedule/lanes_fixture.h"

namespace sluiceway::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

constexpr int kParts = 3;
constexpr AdamHyper kAdam{.lr = 1e-3, .step = 5};

struct GateFixture {
  explicit GateFixture(StepGate::Options options = {}, Order order = Order::kEdf)
      : lanes(kParts, order), gate(options, order, *lanes.executor, kParts) {}

  void add(int part, double sum_squares, bool finite = true) {
    gate.note_gradient(part);
    gate.note_scan(part, {.finite = finite, .sum_squares = sum_squares});
  }
  void send(int part, std::optional<Forecast> forecast = {}) {
    gate.send(part, lanes.payload(part, kApply), std::move(forecast));
  }

  LanesFixture lanes;
  StepGate gate;
};

TEST(StepGateTest, ClipsByTheNormOfAllPartsAndOfWhatIsOutside) {
  GateFixture f({.max_norm = 2});
  f.add(0, 4);
  f.add(2, 5);
  const StepOutcome outcome = f.gate.decide(2, 13);
  EXPECT_FALSE(outcome.skipped);
  EXPECT_DOUBLE_EQ(outcome.grad_norm, 7);  // sqrt(2^2 * 9 + 13)
  EXPECT_FLOAT_EQ(outcome.clip_factor, static_cast<float>(2 / (7 + 1e-6)));
}

TEST(StepGateTest, NothingIsClippedBelowMaxNormOrWithoutOne) {
  GateFixture below({.max_norm = 100});
  below.add(0, 9);
  EXPECT_EQ(below.gate.decide(1, 0).clip_factor, 1.0F);
  GateFixture without;
  without.add(0, 1e12);
  EXPECT_EQ(without.gate.decide(1, 0).clip_factor, 1.0F);
}

TEST(StepGateTest, PartsThatWereClippedApartCountWithTheirOwnFactor) {
  GateFixture f({.max_norm = 1000});
  f.add(0, 4);
  f.add(2, 5);
  const float own[kParts] = {0.5F, 7.0F, 2.0F};  // Part 1 has no gradient.
  EXPECT_DOUBLE_EQ(f.gate.norm(own).norm, std::sqrt(0.25 * 4 + 4 * 5));
  EXPECT_DOUBLE_EQ(f.gate.decide(2, 16, own).grad_norm, 10);  // sqrt(2^2 * 21 + 16)
  EXPECT_THAT([&] { f.gate.decide(1, 0, std::span(own).first(2)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("2 factors for 3 parts")));
}

TEST(StepGateTest, APartWithoutAGradientHasTheScanOfNothing) {
  GateFixture f;
  f.add(0, 4);
  EXPECT_EQ(f.gate.scan(0).sum_squares, 4);
  f.gate.drop();
  EXPECT_EQ(f.gate.scan(0).sum_squares, 0);
  EXPECT_EQ(f.gate.scan(0).abs_max, 0.0F);
}

TEST(StepGateTest, G1PartsAreSummedInTheirOrderWhateverCameFirst) {
  const double parts[kParts] = {1e16, 1.0, 1.0};  // Another order would give other bits.
  GateFixture forward, backward;
  for (int i = 0; i < kParts; ++i) forward.add(i, parts[i]);
  for (int i = kParts; i-- > 0;) backward.add(i, parts[i]);
  EXPECT_EQ(forward.gate.norm().norm, std::sqrt(parts[0] + parts[1] + parts[2]));
  EXPECT_EQ(backward.gate.norm().norm, forward.gate.norm().norm);
}

TEST(StepGateTest, AStepIsSkippedForAPartOrAnythingOutsideThatIsNotFinite) {
  GateFixture f;
  f.add(0, 1);
  EXPECT_FALSE(f.gate.decide(1, 1).skipped);
  EXPECT_TRUE(f.gate.decide(1, std::numeric_limits<double>::infinity()).skipped);
  EXPECT_TRUE(f.gate.decide(std::nanf(""), 0).skipped);
  f.add(1, 1, false);
  EXPECT_TRUE(f.gate.decide(1, 1).skipped);
}

TEST(StepGateTest, G2ADroppedStepLeavesNoPayloadAndIsNotCounted) {
  GateFixture f;
  f.add(0, 1);
  f.send(0);
  EXPECT_TRUE(f.gate.gathering());
  f.gate.drop();
  EXPECT_FALSE(f.gate.has_gradient());
  EXPECT_FALSE(f.gate.gathering());
  EXPECT_FALSE(f.lanes.executor->busy(0));
  EXPECT_EQ(f.gate.committed_steps(), 0);
  EXPECT_THAT(f.gate.commit(1), IsEmpty());
  f.lanes.executor->drain();
  EXPECT_THAT(f.lanes.log.layers_in(kApply), IsEmpty());
}

TEST(StepGateTest, G3OnlyAForecastThatDoesNotHoldIsTakenBack) {
  GateFixture f;
  for (const int part : {0, 1}) {
    f.add(part, 1);
    f.send(part, Forecast{kAdam, 0.5F});
  }
  AdamHyper another_rate = kAdam;
  another_rate.lr = 7;
  EXPECT_TRUE(f.gate.still_holds(0, another_rate, 0.5F));  // Directions have no learning rate.
  EXPECT_FALSE(f.gate.still_holds(1, kAdam, 0.25F));
  EXPECT_FALSE(f.lanes.executor->busy(1));
  EXPECT_EQ(f.gate.take_recalled(), 1U);
  f.send(1);
  EXPECT_THAT(f.gate.commit(1), ElementsAre(0, 1));
  f.lanes.executor->drain();
  EXPECT_THAT(f.lanes.log.layers_in(kApply), testing::UnorderedElementsAre(0, 1));
}

TEST(StepGateTest, G3EveryNumberThatADirectionDependsOnIsCompared) {
  const Forecast forecast{kAdam, 0.5F};
  EXPECT_TRUE(forecast.holds(kAdam, 0.5F));
  for (double AdamHyper::*number : {&AdamHyper::beta1, &AdamHyper::beta2, &AdamHyper::eps}) {
    AdamHyper other = kAdam;
    other.*number *= 0.5;
    EXPECT_FALSE(forecast.holds(other, 0.5F));
  }
  AdamHyper later = kAdam;
  later.step = 6;
  EXPECT_FALSE(forecast.holds(later, 0.5F));
}

TEST(StepGateTest, G4PayloadsPassTheirHoldInCommitAlone) {
  GateFixture f;
  f.add(1, 1);
  f.send(1);
  f.lanes.streams[static_cast<std::size_t>(kH2d)].synchronize();
  EXPECT_THAT(f.lanes.log.layers_in(kApply), IsEmpty());
  EXPECT_TRUE(f.gate.holds_back(1));
  EXPECT_FALSE(f.gate.holds_back(0));
  EXPECT_THAT(f.gate.commit(0.5F), ElementsAre(1));
  f.lanes.executor->drain();
  EXPECT_THAT(f.lanes.log.layers_in(kApply), ElementsAre(1));
  EXPECT_EQ(f.gate.forecast_factor(), 0.5F);
  EXPECT_EQ(f.gate.committed_steps(), 1);
}

TEST(StepGateTest, UnderBarrierEveryPartIsHeldBackWhileOneIsGathered) {
  GateFixture f({}, Order::kBarrier);
  f.add(2, 1);
  f.send(2);
  EXPECT_TRUE(f.gate.holds_back(0));
  f.gate.commit(1);
  EXPECT_FALSE(f.gate.holds_back(0));
  f.lanes.executor->drain();
}

TEST(StepGateTest, G5AGradientAfterThePayloadLeftTakesItBackAndCountsIt) {
  GateFixture f;
  f.add(0, 1);
  f.send(0);
  EXPECT_FALSE(f.gate.take_back(1));
  EXPECT_TRUE(f.gate.take_back(0));
  EXPECT_FALSE(f.lanes.executor->busy(0));
  EXPECT_EQ(f.gate.take_recalled(), 1U);
  EXPECT_EQ(f.gate.take_recalled(), 0U);
  f.add(0, 1);
  f.send(0);
  f.gate.commit(1);
  f.lanes.executor->drain();
  EXPECT_THAT(f.lanes.log.layers_in(kApply), ElementsAre(0));
}

TEST(StepGateTest, G6PartsExpectAsManyBackwardsAsTheyHadOrAsWerePromised) {
  GateFixture counted;
  counted.add(0, 1);
  counted.add(0, 1);
  counted.send(0);
  counted.gate.commit(1);
  EXPECT_EQ(counted.gate.expected(0), 2);
  EXPECT_EQ(counted.gate.expected(1), 1);
  counted.gate.expect_backwards(1, 4);
  EXPECT_EQ(counted.gate.expected(1), 4);

  GateFixture promised({.promised_backwards = 3});
  promised.add(0, 1);
  EXPECT_FALSE(promised.gate.is_complete(0));
  promised.send(0);
  promised.gate.commit(1);
  promised.gate.expect_backwards(0, 1);  // A promise is not forecast.
  EXPECT_EQ(promised.gate.expected(0), 3);
}

TEST(StepGateErrorTest, NumbersThatCannotBeAreNamed) {
  GateFixture f;
  EXPECT_THAT([&] { f.gate.set_committed_steps(-1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("committed steps is -1")));
  EXPECT_THAT([&] { f.gate.expect_backwards(0, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the number of backwards per step is 0")));
}

}  // namespace
}  // namespace sluiceway::test
