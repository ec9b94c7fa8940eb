// Cores computed elsewhere enter a step like the cores of gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

Training training_with(ResidualKind residual = ResidualKind::kNone, int every = 1, int promised = 0,
                       bool at_once = false) {
  SubspaceOptions options = options_with(Order::kEdf, NormChoice::kExact, 0.5);
  options.residual_every = every;
  options.residual_at_once = at_once;
  options.gate.promised_backwards = promised;
  return {options, "block_random", WireFormat::kF32, CoreTier::kHost, residual};
}

Matrix core_of(const Training& training, int index, Matrix& g) {
  const SubspaceWeight& weight = training.engine->weight(index);
  Matrix core(weight.plan.core.rows, weight.plan.core.cols);
  std::vector<float> scratch(weight.scratch_elems());
  weight.codec->compress(Training::any(g), 0, core.view(), scratch, StreamRef::host());
  return core;
}

void add_core(Training& training, int index, Matrix core, bool whole = true) {
  training.engine->add_core(index, Training::any(core), whole, StreamRef::host());
  core.v.assign(core.v.size(), NAN);  // The framework freed it.
}

void add_cores(Training& training, std::vector<Matrix>& g) {
  for (std::size_t i = g.size(); i-- > 0;) {
    const int index = static_cast<int>(i);
    add_core(training, index, core_of(training, index, g[i]));
  }
}

TEST(GivenCoreTest, TrainsAsTheGradientThatItIsOf) {
  Training cores = training_with(), gradients = training_with();
  for (int step = 0; step < 4; ++step) {
    std::vector<Matrix> g = cores.gradients(), same = gradients.gradients();
    add_cores(cores, g);
    gradients.backward(same);
    const StepOutcome ours = cores.step(), theirs = gradients.step();
    EXPECT_EQ(ours.grad_norm, theirs.grad_norm);
    EXPECT_LT(ours.clip_factor, 1);
  }
  cores.engine->synchronize();
  gradients.engine->synchronize();
  EXPECT_EQ(cores.weights, gradients.weights);
  EXPECT_EQ(cores.engine->take_stats().recalled, 0U);
}

TEST(GivenCoreTest, MicroBatchesAddUp) {
  Training cores = training_with(), gradients = training_with();
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 3; ++micro) {
      std::vector<Matrix> g = cores.gradients(), same = gradients.gradients();
      add_cores(cores, g);
      gradients.backward(same);
    }
    cores.step();
    gradients.step();
  }
  cores.engine->synchronize();
  gradients.engine->synchronize();
  for (std::size_t i = 0; i < cores.weights.size(); ++i) {
    EXPECT_TRUE(all_near(cores.weights[i].v, as_f64(gradients.weights[i]).v, {.abs = 1e-4}));
  }
}

TEST(GivenCoreTest, APartOfABackwardIsCountedWithTheGradientThatFollows) {
  Training training = training_with(ResidualKind::kNone, 1, 1), whole = training_with();
  for (int step = 0; step < 3; ++step) {
    std::vector<Matrix> g = training.gradients(), same = whole.gradients();
    for (std::size_t i = g.size(); i-- > 0;) {
      const int index = static_cast<int>(i);
      for (float& x : g[i].v) x *= 0.5F;
      add_core(training, index, core_of(training, index, g[i]), false);
      training.engine->add_gradient(index, Training::any(g[i]), StreamRef::host());
    }
    whole.backward(same);
    training.step();
    whole.step();
  }
  training.engine->synchronize();
  whole.engine->synchronize();
  for (std::size_t i = 0; i < whole.weights.size(); ++i) {
    EXPECT_TRUE(all_near(training.weights[i].v, as_f64(whole.weights[i]).v, {.abs = 1e-4}));
  }
}

TEST(GivenCoreTest, ACoreThatWasDroppedLeavesNoTrace) {
  Training with = training_with(), without = training_with();
  std::vector<Matrix> g = with.gradients(), same = without.gradients(), noise = g;
  add_core(with, 0, core_of(with, 0, noise[0]), false);
  with.engine->drop();
  add_cores(with, g);
  add_cores(without, same);
  with.step();
  without.step();
  with.engine->synchronize();
  without.engine->synchronize();
  EXPECT_EQ(with.weights, without.weights);
}

TEST(GivenCoreTest, AResidualWantsItsGradientWhenItHasItsTurn) {
  Training training = training_with(ResidualKind::kFactored, 2);
  for (int step = 0; step < 4; ++step) {
    std::vector<Matrix> g = training.gradients();
    for (int index = 0; index < 3; ++index) {
      EXPECT_EQ(training.engine->wants_gradient(index), (step + index) % 2 == 0);
    }
    training.backward(g);
    training.step();
    training.engine->synchronize();
  }
}

TEST(GivenCoreTest, StepsBetweenTurnsNeedNoGradient) {
  for (const bool at_once : {false, true}) {
    const int promised = at_once ? 1 : 0;
    Training cores = training_with(ResidualKind::kFactored, 2, promised, at_once);
    Training gradients = training_with(ResidualKind::kFactored, 2, promised, at_once);
    for (int step = 0; step < 4; ++step) {
      std::vector<Matrix> g = cores.gradients(), same = gradients.gradients();
      cores.engine->prepare(cores.hyper(), cores.views());
      for (int index = 2; index >= 0; --index) {
        Matrix& one = g[static_cast<std::size_t>(index)];
        if (cores.engine->wants_gradient(index)) {
          cores.engine->add_gradient(index, Training::any(one), StreamRef::host());
        } else {
          add_core(cores, index, core_of(cores, index, one));
        }
      }
      gradients.backward(same);
      cores.step();
      gradients.step();
      cores.engine->synchronize();
      gradients.engine->synchronize();
    }
    EXPECT_EQ(cores.weights, gradients.weights);
  }
}

TEST(GivenCoreTest, AResidualIsLeftOutWhereItsGradientDidNotComeWhole) {
  Training with = training_with(ResidualKind::kFactored), without = training_with();
  std::vector<Matrix> g = with.gradients(), same = without.gradients();
  add_cores(with, g);
  add_cores(without, same);
  with.step();
  without.step();
  with.engine->synchronize();
  without.engine->synchronize();
  EXPECT_EQ(with.weights, without.weights);
}

TEST(GivenCoreTest, AWrongShapeNamesTheWeightAndChangesNothing) {
  Training training = training_with();
  const CoreShape core = training.engine->weight(0).plan.core;
  EXPECT_THAT([&] { add_core(training, 0, Matrix(core.rows, core.cols + 1)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("core of w0 is ")));
  EXPECT_FALSE(training.engine->has_gradient());
}

TEST(GivenCoreTest, WhileACalibrationRunsItIsRefusedAndTheGradientWanted) {
  Training training = training_with();
  std::vector<Matrix> g = training.gradients();
  EXPECT_FALSE(training.engine->wants_gradient(1));
  training.engine->begin_calibration();
  EXPECT_TRUE(training.engine->wants_gradient(1));
  EXPECT_THAT([&] { add_cores(training, g); },
              ThrowsMessage<InvalidArgument>(HasSubstr("while its projectors wait")));
  training.engine->end_calibration();
  EXPECT_FALSE(training.engine->has_gradient());
}

TEST(GivenCoreTest, ACodecWithoutProjectorsSaysSo) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "identity");
  const GradientCodec& codec = *training.engine->weight(0).codec;
  EXPECT_FALSE(codec.projects());
  Matrix rows(2, 13), out(2, 13);
  EXPECT_THAT(
      [&] {
        codec.project(Side::kRows, Training::any(out), Training::any(rows), {}, StreamRef::host());
      },
      ThrowsMessage<Unavailable>(HasSubstr("codec identity has no projectors")));
}

}  // namespace
}  // namespace sluiceway::test
