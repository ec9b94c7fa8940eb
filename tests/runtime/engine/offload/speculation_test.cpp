// Updates made before their step is decided have the bits of updates made after it, whatever
// happens to the step; nothing reaches the device or a commit before the decision.
#include "runtime/engine/offload/speculation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/engine/offload/offload_engine.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/offload_reference.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// In chunks of 4096 elements: of one tensor, of several, and of tensors that cross compressed.
std::vector<TensorSpec> model_specs(bool compressed) {
  return {{"embedding", {100, 123}, DType::kBF16},
          {"norm1", {64}, DType::kF32},
          {"query", {64, 64}, DType::kBF16, compressed},
          {"norm2", {300}, DType::kF32},
          {"key", {64, 96}, DType::kF32, compressed},
          {"head", {7, 301}, DType::kBF16},
          {"tiny", {3}, DType::kBF16}};
}

// The parameter: whether gradients of some tensors cross compressed.
class SpeculationTest : public testing::TestWithParam<bool> {
 protected:
  static std::vector<TensorSpec> specs() { return model_specs(GetParam()); }

  static OffloadOptions options(UpdatePolicy policy = UpdatePolicy::kSpeculative) {
    OffloadOptions made = small_chunk_options();
    made.cores.codec.name = "block_random";
    made.gate.promised_backwards = 1;
    made.policy = policy;
    made.park_bytes = 40000;  // Room for some chunks.
    return made;
  }

  // Takes a step that goes as expected.
  static StepOutcome step(OffloadEngine& engine, OffloadModel& model, std::int64_t number,
                          float factor = kStepFactor, const HasGradient& has = {}) {
    backward(engine, model, number, factor, has);
    OffloadRequest request = request_of(model);
    request.factor = factor;
    return engine.step(request);
  }

  static void backward(OffloadEngine& engine, OffloadModel& model, std::int64_t number,
                       float expected = kStepFactor, const HasGradient& has = {}) {
    engine.expect(request_of(model).hyper, expected);
    add(engine, model, number, 0, has);
  }

  static void add(OffloadEngine& engine, const OffloadModel& model, std::int64_t number, int batch,
                  const HasGradient& has = {}) {
    OffloadGradients gradients(model, number, batch);
    for (int t = model.size(); t-- > 0;) {
      if (!has || has(t, batch)) gradients.add_to(engine, t);
    }
    engine.end_backward();
  }

  // Takes the same steps, with updates after each decision.
  struct Plain {
    explicit Plain(OffloadOptions with) : engine(std::move(with), specs()), model(specs(), 1) {
      engine.begin(model.tensors());
    }
    OffloadEngine engine;
    OffloadModel model;
  };

  static void expect_equal(OffloadEngine& engine, const OffloadModel& model, Plain& plain) {
    engine.synchronize();
    plain.engine.synchronize();
    EXPECT_EQ(difference(model, plain.model), "");
    EXPECT_EQ(state_difference(engine, plain.engine), "");
  }

  OffloadModel model{specs(), 1};
};

INSTANTIATE_TEST_SUITE_P(Gradients, SpeculationTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Compressed" : "Whole"; });

TEST_P(SpeculationTest, NothingOnTheDeviceOrInACommitChangesBeforeTheStepIsDecided) {
  const ScratchPath drive;
  OffloadOptions with = options();
  with.store.drives = {drive.str()};
  Plain plain(options(UpdatePolicy::kSpill));
  {
    OffloadEngine engine(with, specs());
    engine.begin(model.tensors());
    step(engine, model, 1);
    backward(engine, model, 2);
    const OffloadModel before = model;
    engine.commit();  // Commits step 1, and nothing that is being gathered.
    EXPECT_EQ(engine.store().live().step, 1U);
    EXPECT_EQ(difference(model, before), "");
    EXPECT_EQ(engine.tensor_steps(0), 1);
    step(plain.engine, plain.model, 1);
    expect_equal(engine, model, plain);  // Also read_state() of step 1.
    // Without step() and close(), as after a crash.
  }
  OffloadEngine engine(with, specs());
  engine.resume(model.tensors());
  EXPECT_EQ(engine.committed_steps(), 1);
  expect_equal(engine, model, plain);
  step(engine, model, 2);
  step(plain.engine, plain.model, 2);
  expect_equal(engine, model, plain);
}

TEST_P(SpeculationTest, AnOverflowAnywhereSkipsThatStepAndNothingElse) {
  OffloadEngine engine(options(), specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  std::int64_t number = 0;
  for (int bad = 0; bad < model.size(); ++bad) {
    OffloadGradients gradients(model, 100, 0);
    gradients.poison(bad, std::numeric_limits<float>::infinity());
    engine.expect(request_of(model).hyper, kStepFactor);
    for (int t = model.size(); t-- > 0;) gradients.add_to(engine, t);
    EXPECT_TRUE(engine.step(request_of(model)).skipped) << model.spec(bad).name;
    EXPECT_FALSE(engine.has_gradient());
    expect_equal(engine, model, plain);
    ++number;
    step(engine, model, number);
    step(plain.engine, plain.model, number);
    expect_equal(engine, model, plain);
  }
  EXPECT_EQ(engine.take_stats().speculative_steps, static_cast<std::uint64_t>(number));
}

TEST_P(SpeculationTest, DroppedGradientsLeaveTheStatesAsTheyWere) {
  OffloadEngine engine(options(), specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  step(engine, model, 1);
  step(plain.engine, plain.model, 1);
  backward(engine, model, 55);
  engine.drop();
  EXPECT_FALSE(engine.has_gradient());
  expect_equal(engine, model, plain);
  OffloadGradients some(model, 56, 0);  // Less than a whole backward.
  engine.expect(request_of(model).hyper, kStepFactor);
  for (const int t : {6, 4, 2}) some.add_to(engine, t);
  engine.drop();
  expect_equal(engine, model, plain);
  step(engine, model, 2);
  step(plain.engine, plain.model, 2);
  expect_equal(engine, model, plain);
}

TEST_P(SpeculationTest, TensorsWithoutAGradientAreNotTouched) {
  OffloadEngine engine(options(), specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  for (std::int64_t number = 1; number <= 4; ++number) {
    const auto has = [number](int t, int) { return (t + static_cast<int>(number)) % 3 != 0; };
    step(engine, model, number, kStepFactor, has);
    step(plain.engine, plain.model, number, kStepFactor, has);
    expect_equal(engine, model, plain);
  }
  EXPECT_EQ(engine.take_stats().speculative_steps, 4U);
}

TEST_P(SpeculationTest, AStepThatIsNotAsExpectedIsMadeAgainFromGradientsThatAreKept) {
  OffloadOptions kept = options();
  kept.redo = true;
  OffloadEngine engine(kept, specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  for (std::int64_t number = 1; number <= 3; ++number) {
    backward(engine, model, number);
    add(plain.engine, plain.model, number, 0);
    std::vector<TensorHyper> hyper;
    std::vector<float> own(specs().size(), 1);
    own[static_cast<std::size_t>(number)] =
        0.5F;  // For one tensor in the second step, for another in the third.
    for (auto* const run : {&engine, &plain.engine}) {
      OffloadRequest request = request_of(run == &engine ? model : plain.model);
      hyper.assign(request.hyper.begin(), request.hyper.end());
      if (number == 1) hyper[0].lr *= 2;
      request.hyper = hyper;
      if (number > 1) request.own_factors = own;
      if (number == 3) request.factor = 0.25F;
      EXPECT_FALSE(run->step(request).skipped);
    }
    expect_equal(engine, model, plain);
  }
  EXPECT_EQ(engine.take_stats().redone_steps, 3U);
}

TEST_P(SpeculationTest, AStepThatCannotBeMadeAgainIsRefusedAndTheRunGoesOn) {
  OffloadEngine engine(options(), specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  backward(engine, model, 1);
  OffloadRequest request = request_of(model);
  request.factor = 0.25F;
  const OffloadModel before = model;
  EXPECT_THAT([&] { engine.step(request); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("embedding with factor 0.25"), HasSubstr("expected 0.5"),
                        HasSubstr("max_norm="), HasSubstr("policy=spill"))));
  EXPECT_EQ(difference(model, before), "");
  EXPECT_FALSE(engine.has_gradient());
  expect_equal(engine, model, plain);
  backward(engine, model, 1);
  std::vector<TensorHyper> hyper(request.hyper.begin(), request.hyper.end());
  hyper[1].weight_decay = 0.75;
  request = request_of(model);
  request.hyper = hyper;
  EXPECT_THAT([&] { engine.step(request); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("norm1 with weight_decay 0.75"), HasSubstr("expected 0"))));
  EXPECT_EQ(engine.committed_steps(), 0);
  step(engine, model, 1);
  step(plain.engine, plain.model, 1);
  expect_equal(engine, model, plain);
}

TEST_P(SpeculationTest, ASecondGradientIsTakenWhereTheFirstIsKeptAndElseRefused) {
  Plain plain(options(UpdatePolicy::kSpill));
  OffloadOptions kept = options();
  kept.redo = true;
  OffloadEngine engine(kept, specs());
  engine.begin(model.tensors());
  for (std::int64_t number = 1; number <= 3; ++number) {
    for (auto* const run : {&engine, &plain.engine}) {
      OffloadModel& of = run == &engine ? model : plain.model;
      run->expect(request_of(of).hyper, kStepFactor);
      if (number == 2) {  // Both in one backward.
        OffloadGradients gradients(of, number, 2);
        for (int t = 0; t < of.size(); ++t) gradients.add_to(*run, t);
      }
      for (const int batch : {0, 1}) add(*run, of, number, batch);
      EXPECT_FALSE(run->step(request_of(of)).skipped);
    }
    expect_equal(engine, model, plain);
  }
  OffloadModel other(specs(), 1);
  OffloadEngine forgetful(options(), specs());
  forgetful.begin(other.tensors());
  backward(forgetful, other, 1);
  OffloadGradients second(other, 1, 1);
  for (const int t : {0, 3}) {
    EXPECT_THAT([&] { second.add_to(forgetful, t); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr(other.spec(t).name), HasSubstr("accumulate="))));
  }
  EXPECT_FALSE(forgetful.step(request_of(other)).skipped);  // With the first gradient.
  Plain once(options(UpdatePolicy::kSpill));
  step(once.engine, once.model, 1);
  expect_equal(forgetful, other, once);
}

TEST_P(SpeculationTest, WhereMostStepsAreClippedTheyAreUpdatedAfterwardsUntilSixteenAreNot) {
  OffloadOptions clipped = options(), after = options(UpdatePolicy::kSpill);
  clipped.gate.max_norm = after.gate.max_norm = 0.5;
  OffloadEngine engine(clipped, specs());
  Plain plain(after);
  engine.begin(model.tensors());
  std::int64_t number = 0;
  const auto steps = [&](int count, float factor) {
    for (int i = 0; i < count; ++i) {
      ++number;
      step(engine, model, number, factor);
      step(plain.engine, plain.model, number, factor);
    }
    expect_equal(engine, model, plain);
    const OffloadStats stats = engine.take_stats();
    return std::vector{stats.speculative_steps, stats.redone_steps, stats.fallen_back_steps};
  };
  using Counts = std::vector<std::uint64_t>;
  EXPECT_EQ(steps(3, 1e-4F), (Counts{3, 0, 0}));
  EXPECT_EQ(steps(7, 1), (Counts{0, 5, 2}));  // A quarter of 16 may be redone, but no more.
  EXPECT_EQ(steps(15, 1e-4F), (Counts{0, 0, 15}));
  EXPECT_EQ(steps(1, 1), (Counts{0, 0, 1}));  // Counting starts again.
  EXPECT_EQ(steps(17, 1e-4F), (Counts{1, 0, 16}));
}

TEST_P(SpeculationTest, AStepOfWhichNothingWasSaidIsUpdatedAfterwards) {
  OffloadEngine engine(options(), specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  add(engine, model, 1, 0);
  EXPECT_THAT([&] { engine.expect(request_of(model).hyper, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("after a gradient of this step")));
  engine.step(request_of(model));
  step(plain.engine, plain.model, 1);
  expect_equal(engine, model, plain);
  const OffloadStats stats = engine.take_stats();
  EXPECT_EQ(stats.fallen_back_steps, 1U);
  EXPECT_EQ(stats.speculative_steps, 0U);
  EXPECT_THAT([&] { engine.expect({}, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("0 hyperparameters, expected 7")));
}

TEST_P(SpeculationTest, PinsAndRollBacksWhileAStepIsGatheredAreOfTheStepBeforeIt) {
  const ScratchPath drive;
  OffloadOptions with = options();
  with.store.drives = {drive.str()};
  OffloadEngine engine(with, specs());
  Plain plain(options(UpdatePolicy::kSpill));
  engine.begin(model.tensors());
  step(engine, model, 1);
  step(plain.engine, plain.model, 1);
  backward(engine, model, 2);
  const std::uint64_t pinned = engine.pin();
  EXPECT_EQ(engine.store().pinned()->step, 1U);
  EXPECT_FALSE(engine.step(request_of(model)).skipped);
  step(engine, model, 3);
  backward(engine, model, 4);
  engine.roll_back(pinned);
  EXPECT_FALSE(engine.has_gradient());
  engine.resume(model.tensors());
  expect_equal(engine, model, plain);
  for (const std::int64_t number : {2, 3}) {
    step(engine, model, number);
    step(plain.engine, plain.model, number);
  }
  expect_equal(engine, model, plain);
}

TEST(RecentRedosTest, MoreThanAQuarterOfTheLastSixteenForbidAndSixteenCleanOnesAllow) {
  RecentRedos redos;
  for (int i = 0; i < 4; ++i) redos.note(false);
  EXPECT_TRUE(redos.allow());
  for (int i = 0; i < RecentRedos::kSteps - 4; ++i) redos.note(true);
  for (int i = 0; i < 4; ++i) {  // Each replaces one that is forgotten.
    redos.note(false);
    EXPECT_TRUE(redos.allow()) << i;
  }
  redos.note(false);
  EXPECT_FALSE(redos.allow());
  for (int i = 0; i < RecentRedos::kSteps - 1; ++i) redos.note(true);
  redos.note(false);
  for (int i = 0; i < RecentRedos::kSteps; ++i) {
    EXPECT_FALSE(redos.allow()) << i;
    redos.note(true);
  }
  EXPECT_TRUE(redos.allow());
}

}  // namespace
}  // namespace sluiceway::test
