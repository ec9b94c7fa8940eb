// Residuals in an engine: applied in the last backward or at step(), with the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

SubspaceOptions with_residual(int promised, bool at_once, Order order = Order::kEdf) {
  SubspaceOptions options = options_with(order, NormChoice::kExact, 0.5);
  options.gate.promised_backwards = promised;
  options.residual_at_once = at_once;
  return options;
}

Training training_with(const SubspaceOptions& options, const std::string& codec = "block_random",
                       ResidualKind kind = ResidualKind::kFactored,
                       CoreTier tier = CoreTier::kHost) {
  return {options, codec, WireFormat::kF32, tier, kind};
}

// Micro-batches and their running sum, as a framework accumulates them.
void train_step(Training& training, int backwards) {
  std::vector<Matrix> total;
  for (int micro = 0; micro < backwards; ++micro) {
    std::vector<Matrix> g = training.gradients();
    if (micro == 0) {
      total = g;
    } else {
      for (std::size_t i = 0; i < g.size(); ++i) {
        for (std::size_t j = 0; j < g[i].v.size(); ++j) total[i].v[j] += g[i].v[j];
      }
    }
    training.backward(g, total);
  }
  training.step();
  training.engine->synchronize();  // `total` is lent until then.
}

using Case = std::tuple<Order, std::string, ResidualKind, CoreTier, int>;
class EngineResidualTest : public testing::TestWithParam<Case> {};

TEST_P(EngineResidualTest, AppliedAtOnceOrHeldGivesTheSameBits) {
  const auto& [order, codec, kind, tier, backwards] = GetParam();
  Training at_once = training_with(with_residual(backwards, true, order), codec, kind, tier);
  Training held = training_with(with_residual(backwards, false, order), codec, kind, tier);
  Training forecast = training_with(with_residual(0, true, order), codec, kind, tier);
  const std::vector<Matrix> before = held.weights;
  for (int step = 0; step < 4; ++step) {
    train_step(at_once, backwards);
    train_step(held, backwards);
    train_step(forecast, backwards);
  }
  EXPECT_NE(held.weights, before);
  EXPECT_EQ(at_once.weights, held.weights);
  EXPECT_EQ(forecast.weights, held.weights);
  EXPECT_EQ(held.engine->committed_steps(), 4);
}

std::string case_name(const testing::TestParamInfo<Case>& test) {
  const auto& [order, codec, kind, tier, backwards] = test.param;
  return std::string(to_string(order)) + "_" + codec +
         (kind == ResidualKind::kSign ? "_sign" : "_factored") +
         (tier == CoreTier::kHost ? "_host_" : "_device_") + std::to_string(backwards);
}

INSTANTIATE_TEST_SUITE_P(
    Engine, EngineResidualTest,
    testing::Combine(testing::Values(Order::kBarrier, Order::kEdf),
                     testing::Values("block_random", "none"),
                     testing::Values(ResidualKind::kFactored, ResidualKind::kSign),
                     testing::Values(CoreTier::kHost, CoreTier::kDevice), testing::Values(1, 3)),
    case_name);

TEST(EngineResidualStepTest, TheNormOfAWeightWithoutACoreIsThatOfItsGradient) {
  Training training = training_with(with_residual(1, true), "none");
  std::vector<Matrix> g = training.gradients();
  const double norm = Training::norm(g);
  training.backward(g);
  EXPECT_NEAR(training.engine->gathered_norm().norm, norm, 1e-5 * norm);
}

TEST(EngineResidualStepTest, NothingCrossesALinkWithoutACore) {
  Training training = training_with(with_residual(1, true), "none");
  for (int step = 0; step < 3; ++step) train_step(training, 1);
  const SubspaceStats stats = training.engine->take_stats();
  EXPECT_EQ(stats.use.d2h_bytes + stats.use.h2d_bytes, 0U);
}

TEST(EngineResidualStepTest, AHeldResidualOfASkippedStepChangesNothing) {
  for (const char* codec : {"block_random", "none"}) {
    Training training = training_with(with_residual(0, false), codec);
    train_step(training, 1);
    const std::vector<Matrix> before = training.weights;
    std::vector<Matrix> g = training.gradients();
    g[2](4, 4) = std::nanf("");
    training.backward(g);
    EXPECT_TRUE(training.step().skipped);
    training.engine->synchronize();
    EXPECT_EQ(training.weights, before);
    train_step(training, 1);
    EXPECT_NE(training.weights, before);
  }
}

TEST(EngineResidualStepTest, ASkippedStepCountsTheWeightsThatTheirResidualTrained) {
  Training training = training_with(with_residual(1, true));
  train_step(training, 1);
  const std::vector<Matrix> before = training.weights;
  std::vector<Matrix> g = training.gradients();
  g[2](4, 4) = std::nanf("");
  training.backward(g);
  EXPECT_TRUE(training.engine->residual_trained(0));
  EXPECT_FALSE(training.engine->residual_trained(2));
  const StepOutcome outcome = training.step();
  training.engine->synchronize();
  EXPECT_TRUE(outcome.skipped);
  EXPECT_EQ(outcome.residuals_kept, 2);
  EXPECT_FALSE(training.engine->residual_trained(0));
  EXPECT_NE(training.weights[0], before[0]);
  EXPECT_NE(training.weights[1], before[1]);
  EXPECT_EQ(training.weights[2], before[2]);  // Its gradient is the one that is not finite.
  EXPECT_EQ(training.engine->committed_steps(), 1);
  std::vector<Matrix> next = training.gradients();
  training.backward(next);
  EXPECT_EQ(training.step().residuals_kept, 0);
}

TEST(EngineResidualStepTest, OnlyAResidualAtOnceHasToBePrepared) {
  Training with = training_with(with_residual(1, true));
  std::vector<Matrix> g = with.gradients();
  EXPECT_THAT([&] { with.engine->add_gradient(0, Training::any(g[0]), StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w0 got a gradient before prepare()")));
  EXPECT_FALSE(with.engine->has_gradient());
  Training without = training_with(with_residual(1, true), "identity", ResidualKind::kNone);
  g = without.gradients();
  without.engine->add_gradient(0, Training::any(g[0]), StreamRef::host());
  EXPECT_TRUE(without.engine->has_gradient());
}

TEST(EngineResidualStepTest, OneBackwardMoreThanPromisedIsRefusedOnceAResidualIsApplied) {
  Training training = training_with(with_residual(1, true));
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  EXPECT_THAT([&] { training.backward(g); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the 1 backwards promised")));
  training.engine->drop();
  g = training.gradients();
  training.backward(g);
  EXPECT_FALSE(training.step().skipped);
}

TEST(EngineResidualStepTest, AWeightThatIsHeldWaitsForTheStepAndCountsItsGradient) {
  Training training = training_with(with_residual(1, true));
  const std::uint64_t before = training.engine->budget().used(Tier::kDevice);
  training.engine->hold_residual(1);
  EXPECT_EQ(training.engine->budget().used(Tier::kDevice) - before, 4U * 31 * 7);
  const std::vector<Matrix> weights = training.weights;
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  EXPECT_NE(training.weights[0], weights[0]);
  EXPECT_EQ(training.weights[1], weights[1]);
  training.step();
  training.engine->synchronize();
  EXPECT_NE(training.weights[1], weights[1]);
}

TEST(EngineResidualStepTest, GradientsOfOneTurnAreCountedAndNotThoseOfAll) {
  const auto used = [](int every, const char* codec) {
    SubspaceOptions options = with_residual(0, false);
    options.residual_every = every;
    Training training = training_with(options, codec);
    const std::uint64_t held = training.engine->take_stats().held_bytes;
    const bool all = every == 1 || codec == std::string("none");
    EXPECT_EQ(held, 4U * (13 * 29 + 17 * 17 + (all ? 31 * 7 : 0)));
    return training.engine->budget().used(Tier::kDevice) - held;
  };
  EXPECT_EQ(used(2, "block_random"), used(1, "block_random"));
  EXPECT_EQ(used(2, "none"), used(1, "none"));  // Their norm is the norm of the gradient itself.
}

TEST(EngineResidualStepTest, AResidualOutOfItsTurnReadsNoSumOfGradients) {
  SubspaceOptions options = with_residual(0, false);
  options.residual_every = 2;
  for (const char* codec : {"block_random", "none"}) {
    Training training = training_with(options, codec);
    std::vector<bool> kept;
    for (int step = 0; step < 2; ++step) {
      for (int index = 0; index < 3; ++index) kept.push_back(training.engine->keeps_total(index));
      train_step(training, 1);
    }
    const bool all = codec == std::string("none");
    EXPECT_THAT(kept, testing::ElementsAre(true, all, true, all, true, all));
  }
}

TEST(EngineResidualStepTest, TurnsComeEverySoManySteps) {
  SubspaceOptions options = with_residual(1, true);
  options.residual_every = 3;
  Training training = training_with(options, "none");
  std::vector<int> changed(3);
  for (int step = 0; step < 6; ++step) {
    const std::vector<Matrix> before = training.weights;
    train_step(training, 1);
    for (std::size_t i = 0; i < 3; ++i) changed[i] += training.weights[i] != before[i] ? 1 : 0;
  }
  EXPECT_THAT(changed, testing::Each(2));
}

TEST(EngineResidualPlanTest, ACodecThatCannotHaveItIsRefused) {
  EXPECT_THAT([] { training_with(with_residual(1, true), "identity"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("leaves no residual")));
  EXPECT_THAT([] { training_with(with_residual(1, true), "none", ResidualKind::kNone); },
              ThrowsMessage<InvalidArgument>(HasSubstr("trains nothing")));
}

}  // namespace
}  // namespace sluiceway::test
