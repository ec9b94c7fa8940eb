// A core of zeros: it trains its weight as AdamW does, and crosses the link as one byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

constexpr std::size_t kZeroed = 1;  // The weight whose gradient is sometimes zero.
constexpr float kTiny = 1.4e-45F;   // Too small for AdamW to notice, but not zero.
constexpr std::uint64_t kFlagBytes = 1;

void fill(Matrix& matrix, float value) { matrix.v.assign(matrix.v.size(), value); }

std::uint64_t core_bytes(const Training& training) {
  std::uint64_t bytes = 0;
  for (int i = 0; i < 3; ++i) bytes += training.engine->weight(i).plan.d2h_bytes;
  return bytes;
}

// Excludes the weight whose gradient is zero.
std::uint64_t other_bytes(const Training& training) {
  return core_bytes(training) - training.engine->weight(kZeroed).plan.d2h_bytes;
}

EngineUse take_use(Training& training) {
  training.engine->synchronize();
  return training.engine->take_stats().use;
}

using Mode = std::tuple<NormChoice, CoreTier>;
class ZeroCoreTest : public testing::TestWithParam<Mode> {};

TEST_P(ZeroCoreTest, MomentumAndDecayGoOnAsInAdamW) {
  const auto [norm, tier] = GetParam();
  Training training(options_with(Order::kEdf, norm), "identity", WireFormat::kF32, tier);
  for (int step = 0; step < 8; ++step) {
    std::vector<Matrix> g = training.gradients();
    if (step % 3 != 0) fill(g[kZeroed], step % 3 == 1 ? 0.0F : -0.0F);
    training.backward(g);
    training.step();
    training.expect_step(g, 1);
    training.engine->synchronize();
    for (std::size_t i = 0; i < training.weights.size(); ++i) {
      EXPECT_TRUE(all_near(training.weights[i].v, training.expected[i].v, {.abs = 2e-6, .eps = 8}))
          << "weight " << i << " step " << step;
    }
  }
}

TEST_P(ZeroCoreTest, AWeightThatNeverHadAGradientOnlyDecays) {
  const auto [norm, tier] = GetParam();
  Training training(options_with(Order::kEdf, norm), "identity", WireFormat::kBF16, tier);
  const Matrix before = training.weights[kZeroed];
  std::vector<Matrix> g = training.gradients();
  fill(g[kZeroed], 0.0F);
  training.backward(g);
  training.step();
  training.engine->synchronize();
  for (std::size_t j = 0; j < before.v.size(); ++j) {
    EXPECT_FLOAT_EQ(training.weights[kZeroed].v[j],
                    before.v[j] * static_cast<float>(1 - kLr * kDecay));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ZeroCoreTest,
                         testing::Combine(testing::Values(NormChoice::kExact,
                                                          NormChoice::kSpeculative),
                                          testing::Values(CoreTier::kHost, CoreTier::kDevice)));

class ZeroCoreOnAWireTest : public testing::TestWithParam<WireFormat> {};

TEST_P(ZeroCoreOnAWireTest, AFlagHasTheBitsOfZerosThatWereSent) {
  const SubspaceOptions options = options_with(Order::kEdf, NormChoice::kSpeculative);
  Training flagged(options, "identity", GetParam()), sent(options, "identity", GetParam());
  for (int step = 0; step < 4; ++step) {
    std::vector<Matrix> g = flagged.gradients();
    std::vector<Matrix> h = sent.gradients();
    if (step % 2 == 1) {
      fill(g[kZeroed], step == 1 ? 0.0F : -0.0F);
      fill(h[kZeroed], 0.0F);
      h[kZeroed](0, 0) = kTiny;
    }
    flagged.backward(g);
    sent.backward(h);
    flagged.step();
    sent.step();
    const std::uint64_t bytes = take_use(flagged).d2h_bytes;
    EXPECT_EQ(take_use(sent).d2h_bytes, core_bytes(sent));
    EXPECT_EQ(bytes, step % 2 == 1 ? other_bytes(flagged) + kFlagBytes : core_bytes(flagged));
  }
  EXPECT_EQ(flagged.weights, sent.weights);
}

TEST_P(ZeroCoreOnAWireTest, TheDirectionComesBackWhole) {
  Training training(options_with(Order::kEdf, NormChoice::kExact), "block_random", GetParam());
  for (int step = 0; step < 2; ++step) {
    std::vector<Matrix> g = training.gradients();
    if (step == 1) fill(g[kZeroed], 0.0F);
    training.backward(g);
    training.step();
    EXPECT_EQ(take_use(training).h2d_bytes, core_bytes(training));
  }
}

INSTANTIATE_TEST_SUITE_P(Wires, ZeroCoreOnAWireTest,
                         testing::Values(WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8));

// One backward is forecast and two come: the payload that left after the first is taken back.
TEST(ZeroCoreAccumulationTest, ZerosInOneMicroBatchAddNothingToTheOther) {
  for (const int zero_in : {0, 1}) {
    Training training(options_with(Order::kEdf, NormChoice::kSpeculative), "identity");
    for (int step = 0; step < 3; ++step) {
      std::vector<Matrix> sum = training.gradients();
      for (Matrix& matrix : sum) fill(matrix, 0.0F);
      for (int micro = 0; micro < 1 + step % 2; ++micro) {
        std::vector<Matrix> g = training.gradients();
        if (micro == zero_in) fill(g[kZeroed], 0.0F);
        for (std::size_t i = 0; i < g.size(); ++i) {
          std::transform(g[i].v.begin(), g[i].v.end(), sum[i].v.begin(), sum[i].v.begin(),
                         std::plus<>());
        }
        training.backward(g);
        training.engine->end_backward();
      }
      training.step();
      training.expect_step(sum, 1);
    }
    training.engine->synchronize();
    EXPECT_TRUE(all_near(training.weights[kZeroed].v, training.expected[kZeroed].v,
                         {.abs = 2e-6, .eps = 8}))
        << "zeros in micro-batch " << zero_in;
  }
}

}  // namespace
}  // namespace sluiceway::test
