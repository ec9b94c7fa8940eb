// SubspaceEngine against AdamW in double, over all orders, norm modes and tiers; and its errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using Mode = std::tuple<Order, NormChoice, CoreTier>;
class SubspaceEngineTest : public testing::TestWithParam<Mode> {};

TEST_P(SubspaceEngineTest, IdentityCodecIsAdamWWithClippingAndAccumulation) {
  const auto [order, norm_choice, tier] = GetParam();
  constexpr double kMaxNorm = 4;
  Training training(options_with(order, norm_choice, kMaxNorm), "identity", WireFormat::kF32, tier);
  int clipped = 0;
  for (int step = 0; step < 7; ++step) {
    const int micro_batches = 1 + step % 3;  // Makes the forecast wrong often.
    std::vector<Matrix> sum = training.gradients();
    for (Matrix& matrix : sum) matrix.v.assign(matrix.v.size(), 0.0F);
    for (int micro = 0; micro < micro_batches; ++micro) {
      std::vector<Matrix> g = training.gradients();
      training.backward(g);
      for (std::size_t i = 0; i < g.size(); ++i) {
        for (std::size_t j = 0; j < g[i].v.size(); ++j) sum[i].v[j] += g[i].v[j];
      }
      for (Matrix& matrix : g) matrix.v.assign(matrix.v.size(), NAN);  // The framework freed it.
    }
    const double norm = Training::norm(sum);
    EXPECT_NEAR(training.engine->gathered_norm().norm, norm, 1e-5 * norm);
    const StepOutcome outcome = training.step();
    const double factor = std::min(1.0, kMaxNorm / (norm + 1e-6));
    clipped += factor < 1 ? 1 : 0;
    EXPECT_FALSE(outcome.skipped);
    EXPECT_NEAR(static_cast<double>(outcome.clip_factor), factor, 1e-6);
    training.expect_step(sum, factor);
    training.engine->synchronize();
    for (std::size_t i = 0; i < training.weights.size(); ++i) {
      EXPECT_TRUE(all_near(training.weights[i].v, training.expected[i].v, {.abs = 2e-6, .eps = 8}))
          << "weight " << i << " step " << step;
    }
  }
  EXPECT_GT(clipped, 0);
  EXPECT_EQ(training.engine->committed_steps(), 7);
}

TEST_P(SubspaceEngineTest, WeightsThatWereClippedApartTakeTheirOwnFactor) {
  const auto [order, norm_choice, tier] = GetParam();
  Training training(options_with(order, norm_choice), "identity", WireFormat::kF32, tier);
  for (int step = 0; step < 5; ++step) {
    std::vector<Matrix> g = training.gradients();
    training.backward(g);
    training.engine->end_backward();
    EXPECT_NEAR(std::sqrt(training.engine->gradient_scan(1).sum_squares), Training::norm({g[1]}),
                1e-5);
    const float largest = std::abs(*std::max_element(
        g[2].v.begin(), g[2].v.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    EXPECT_EQ(training.engine->gradient_scan(2).abs_max, largest);
    const float own[] = {0.5F, 1.0F, step % 2 == 0 ? 0.01F : 3.0F};
    training.step(2, 1, own);
    training.expect_step(g, 2, own);
    training.engine->synchronize();
    for (std::size_t i = 0; i < training.weights.size(); ++i) {
      EXPECT_TRUE(all_near(training.weights[i].v, training.expected[i].v, {.abs = 2e-6, .eps = 8}))
          << "weight " << i << " step " << step;
    }
  }
}

TEST_P(SubspaceEngineTest, AGradientThatIsNotFiniteSkipsTheStepAndChangesNothing) {
  const auto [order, norm_choice, tier] = GetParam();
  Training training(options_with(order, norm_choice), "block_random", WireFormat::kBF16, tier);
  for (int step = 0; step < 2; ++step) {
    std::vector<Matrix> g = training.gradients();
    training.backward(g);
    training.step();
  }
  training.engine->synchronize();
  const std::vector<Matrix> before = training.weights;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<Matrix> g = training.gradients();
    g[1](3, 2) = bad;
    training.backward(g);
    EXPECT_TRUE(training.step().skipped);
    EXPECT_FALSE(training.engine->has_gradient());
  }
  training.engine->synchronize();
  EXPECT_EQ(training.weights, before);
  EXPECT_EQ(training.engine->committed_steps(), 2);
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  EXPECT_FALSE(training.step().skipped);
}

TEST_P(SubspaceEngineTest, DroppedGradientsLeaveNoTrace) {
  const auto [order, norm_choice, tier] = GetParam();
  Training with(options_with(order, norm_choice), "identity", WireFormat::kF32, tier);
  Training without(options_with(order, norm_choice), "identity", WireFormat::kF32, tier);
  for (int step = 0; step < 4; ++step) {
    std::vector<Matrix> g = with.gradients();
    std::vector<Matrix> h = without.gradients();
    std::vector<Matrix> noise = g;
    with.backward(noise);
    with.engine->drop();
    with.backward(g);
    with.step();
    without.backward(h);
    without.step();
  }
  with.engine->synchronize();
  without.engine->synchronize();
  EXPECT_EQ(with.weights, without.weights);
}

std::string mode_name(const testing::TestParamInfo<Mode>& test) {
  const auto [order, norm, tier] = test.param;
  return std::string(to_string(order)) + (norm == NormChoice::kExact ? "_exact" : "_speculative") +
         (tier == CoreTier::kHost ? "_host" : "_device");
}

INSTANTIATE_TEST_SUITE_P(
    Engine, SubspaceEngineTest,
    testing::Combine(testing::Values(Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf),
                     testing::Values(NormChoice::kExact, NormChoice::kSpeculative),
                     testing::Values(CoreTier::kHost, CoreTier::kDevice)),
    mode_name);

TEST(SubspaceEngineStepTest, AFactorFromOutsideScalesTheGradientLikeTheGradientItself) {
  Training scaled(options_with(Order::kEdf, NormChoice::kSpeculative), "identity");
  Training plain(options_with(Order::kEdf, NormChoice::kExact), "identity");
  for (int step = 0; step < 4; ++step) {
    std::vector<Matrix> g = scaled.gradients();
    std::vector<Matrix> h = plain.gradients();
    for (Matrix& matrix : g) {
      for (float& x : matrix.v) x *= 1024;  // A power of two: the same bits after unscaling.
    }
    scaled.backward(g);
    plain.backward(h);
    EXPECT_NEAR(scaled.step(1.0F / 1024).grad_norm, plain.step().grad_norm, 1e-5);
  }
  scaled.engine->synchronize();
  plain.engine->synchronize();
  EXPECT_EQ(scaled.weights, plain.weights);
}

TEST(SubspaceEngineStepTest, EveryByteOnTheLinksIsCounted) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "block_random",
                    WireFormat::kBF16);
  std::uint64_t expected = 0;
  for (int i = 0; i < 3; ++i) expected += training.engine->weight(i).plan.d2h_bytes;
  ASSERT_GT(expected, 0U);
  for (int step = 0; step < 5; ++step) {
    std::vector<Matrix> g = training.gradients();
    training.backward(g);
    training.step();
  }
  training.engine->synchronize();
  const SubspaceStats stats = training.engine->take_stats();
  EXPECT_EQ(stats.use.d2h_bytes, 5 * expected);
  EXPECT_EQ(stats.use.h2d_bytes, 5 * expected);
  EXPECT_EQ(stats.recalled, 0U);
  EXPECT_EQ(training.engine->take_stats().use.d2h_bytes, 0U);
}

TEST(SubspaceEngineStepTest, AWrongForecastIsRecalledSentAgainAndCounted) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "identity");
  for (int step = 0; step < 2; ++step) {  // One backward is forecast, two come.
    for (int micro = 0; micro < 2; ++micro) {
      std::vector<Matrix> g = training.gradients();
      training.backward(g);
    }
    training.step();
  }
  training.engine->synchronize();
  EXPECT_EQ(training.engine->take_stats().recalled, 3U);  // In the first step only.
}

TEST(SubspaceEngineErrorTest, AWrongShapeNamesTheWeightAndChangesNothing) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "identity");
  Matrix wrong(13, 28);
  EXPECT_THAT([&] { training.engine->add_gradient(0, Training::any(wrong), StreamRef::host()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("gradient of w0 is 13x28, expected 13x29")));
  EXPECT_FALSE(training.engine->has_gradient());
}

TEST(SubspaceEngineErrorTest, AWeightThatChangedItsTypeIsNamedAndNothingIsApplied) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "identity");
  std::vector<Matrix> g = training.gradients();
  training.backward(g);
  const std::vector<WeightHyper> hyper(3, kHyper);
  std::vector<AnyMatrix> views;
  for (Matrix& w : training.weights) views.push_back(Training::any(w));
  views[2].dtype = DType::kBF16;
  const std::vector<Matrix> before = training.weights;
  EXPECT_THAT(
      [&] {
        training.engine->step({hyper, views, 1, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("weight w2 is bf16, expected f32")));
  EXPECT_EQ(training.weights, before);
}

TEST(SubspaceEngineErrorTest, ALearningCodecWithoutALearnerIsRefused) {
  EXPECT_THAT([] { Training(options_with(Order::kEdf, NormChoice::kExact), "sparse_learned"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no learner")));
}

}  // namespace
}  // namespace sluiceway::test
