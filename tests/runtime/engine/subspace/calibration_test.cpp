// Calibration in an engine: which gradient is measured, what it changes, and what it reserves.
#include "runtime/engine/subspace/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Fits without arithmetic: unit columns, which are orthonormal.
class UnitLearner final : public ProjectorLearner {
 public:
  void leading_directions(const AnyMatrix& /*g*/, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t /*seed*/, StreamRef /*stream*/) override {
    for (MatrixView<float> x : {p, q}) {
      for (std::int64_t i = 0; i < x.rows; ++i) {
        for (std::int64_t j = 0; j < x.cols; ++j) x.row(i)[j] = i == j ? 1.0F : 0.0F;
      }
    }
  }
  LearnOutcome learn(const AnyMatrix& /*g*/, const LearnableRows& p, const LearnableRows& /*q*/,
                     const LearnOptions& options, StreamRef /*stream*/) override {
    std::fill(p.value.begin(), p.value.end(), 0.25F);
    return {.steps = options.max_steps};
  }
};

SubspaceOptions refreshed(CalibrationSource source, std::int64_t every) {
  SubspaceOptions options = options_with(Order::kEdf, NormChoice::kExact);
  options.refresh = {.every = every, .source = source};
  return options;
}

Training training_of(const SubspaceOptions& options, const std::string& codec) {
  return {options,
          codec,
          WireFormat::kF32,
          CoreTier::kHost,
          ResidualKind::kNone,
          SecondMoment::kFull,
          std::make_unique<UnitLearner>()};
}

void step(Training& training) {
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  training.step();
  training.engine->synchronize();
}

TEST(CalibrationTest, ACodecThatMustBeFittedIsFittedByItsFirstGradient) {
  Training training = training_of(refreshed(CalibrationSource::kRolling, 0), "svd");
  step(training);
  const CalibrationUse use = training.engine->take_stats().calibration;
  EXPECT_EQ(use.refreshed, 3U);
  EXPECT_TRUE(use.bias_mean.has_value());
  step(training);
  EXPECT_EQ(training.engine->take_stats().calibration.refreshed, 0U);
}

TEST(CalibrationTest, ACodecWhoseFirstGradientIsZeroIsFittedByTheNextOfTheSameStep) {
  Training training = training_of(refreshed(CalibrationSource::kRolling, 0), "svd");
  std::vector<Matrix> zeros = training.gradients();
  for (Matrix& matrix : zeros) matrix.v.assign(matrix.v.size(), 0.0F);
  training.backward(zeros);
  EXPECT_EQ(training.engine->gathered_norm().norm, 0.0);
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  EXPECT_GT(training.engine->gathered_norm().norm, 0.0);
  training.step();
  training.engine->synchronize();
  EXPECT_EQ(training.engine->take_stats().calibration.refreshed, 3U);
}

TEST(CalibrationTest, RollingTurnsReplaceProjectorsWhileTrainingGoesOn) {
  for (const NormChoice norm : {NormChoice::kExact, NormChoice::kSpeculative}) {
    SubspaceOptions options = refreshed(CalibrationSource::kRolling, 2);
    options.refresh.per_step = 1;
    options.gate.norm = norm;
    Training training = training_of(options, "sparse_learned");
    std::uint64_t replaced = 0;
    for (int i = 0; i < 6; ++i) {
      step(training);
      replaced += training.engine->take_stats().calibration.refreshed;
    }
    EXPECT_EQ(replaced, 6U);  // One weight per step.
    EXPECT_EQ(training.engine->committed_steps(), 6);
  }
}

TEST(CalibrationTest, WhatASkippedStepTaughtStays) {
  Training training = training_of(refreshed(CalibrationSource::kRolling, 100), "sparse_learned");
  std::vector<Matrix> g = training.gradients();
  g[2](1, 1) = std::nanf("");
  const std::vector<Matrix> before = training.weights;
  training.backward(g);
  EXPECT_TRUE(training.step().skipped);
  training.engine->synchronize();
  EXPECT_EQ(training.weights, before);
  EXPECT_EQ(training.engine->take_stats().calibration.refreshed, 2U);
  EXPECT_FALSE(training.engine->refresh_policy().due(0, 0));
  EXPECT_TRUE(training.engine->refresh_policy().due(0, 2));
}

TEST(CalibrationTest, AClosuresGradientsAreMeasuredAndNotAccumulated) {
  Training training = training_of(refreshed(CalibrationSource::kClosure, 3), "sparse_learned");
  EXPECT_TRUE(training.engine->calibration_due());
  training.engine->begin_calibration();
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  training.engine->end_calibration();
  EXPECT_FALSE(training.engine->has_gradient());
  EXPECT_EQ(training.engine->take_stats().calibration.refreshed, 3U);
  EXPECT_FALSE(training.engine->calibration_due());
  training.backward(g);
  EXPECT_THAT([&] { training.engine->begin_calibration(); },
              ThrowsMessage<InvalidArgument>(HasSubstr("while a step has gradients")));
}

TEST(CalibrationTest, WithoutRefreshesAFittedCodecSaysWhatToPass) {
  Training training = training_of(refreshed(CalibrationSource::kRolling, 0), "sparse_learned");
  training.engine->begin_calibration();
  std::vector<Matrix> g = training.gradients();
  EXPECT_THAT([&] { training.backward(g); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pass Refresh(every=)")));
}

TEST(CalibrationTest, AnEngineReservesWhatItsPlanSaysAndNothingMoreInARefresh) {
  for (const std::int64_t every : {0, 1}) {
    Training training =
        training_of(refreshed(CalibrationSource::kRolling, every), "sparse_learned");
    std::vector<WeightPlan> plans;
    std::uint64_t planned = 0;
    for (int i = 0; i < 3; ++i) {
      plans.push_back(training.engine->weight(i).plan);
      planned += plans.back().device_bytes + plans.back().projector_bytes;
    }
    planned += shared_bytes(plans, every > 0, DeviceId::host());
    EXPECT_EQ(training.engine->budget().used(Tier::kDevice), planned);
    for (int i = 0; i < 3; ++i) step(training);
    EXPECT_EQ(training.engine->budget().peak(Tier::kDevice), planned);
  }
}

}  // namespace
}  // namespace sluiceway::test
