// Cores and sums that the caller changes between gradients and step, as several processes do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/base/error.h"
#include "tests/runtime/engine/subspace/training.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class SharedGradientsTest : public testing::TestWithParam<std::tuple<NormChoice, ResidualKind>> {
 protected:
  static Training training(bool shared, const char* codec = "block_random") {
    const auto [norm, residual] = GetParam();
    SubspaceOptions options = options_with(Order::kEdf, norm, 0.5);
    options.shared = shared;
    return {options, codec, WireFormat::kBF16, CoreTier::kHost, residual};
  }

  // As the mean with a process whose gradients are zero: half of the cores, and of the sums.
  static void halve(Training& training, std::vector<Matrix>& total) {
    for (int i = 0; i < 3; ++i) {
      const MatrixView<float> core = training.engine->core(i);
      for (int k = 0; k < core.rows * core.cols; ++k) core.data[k] *= 0.5F;
      for (float& x : total[static_cast<std::size_t>(i)].v) x *= 0.5F;
      training.engine->averaged(i);
    }
    training.engine->end_backward();
  }
};

// Halves are exact, so an average after each backward has the bits of gradients that were scaled.
TEST_P(SharedGradientsTest, AStepTakesWhatCoresAndSumsAreThen) {
  for (const char* const codec : {"block_random", "none"}) {
    if (std::get<1>(GetParam()) == ResidualKind::kNone && std::string(codec) == "none") continue;
    Training ours = training(true, codec), theirs = training(false, codec);
    for (int step = 0; step < 4; ++step) {
      std::vector<Matrix> first = ours.gradients(), second = ours.gradients();
      std::vector<Matrix> g = theirs.gradients(), h = theirs.gradients(), sum = g;
      std::vector<Matrix> total = first;
      ours.backward(first, total);
      ours.engine->end_backward();
      halve(ours, total);
      for (std::size_t i = 0; i < g.size(); ++i) {
        for (std::size_t k = 0; k < g[i].v.size(); ++k) {
          total[i].v[k] += second[i].v[k];
          g[i].v[k] *= 0.25F;
          h[i].v[k] *= 0.5F;
          sum[i].v[k] = g[i].v[k];
        }
      }
      ours.backward(second, total);
      halve(ours, total);
      theirs.backward(g, sum);
      for (std::size_t i = 0; i < g.size(); ++i) {
        for (std::size_t k = 0; k < g[i].v.size(); ++k) sum[i].v[k] += h[i].v[k];
      }
      theirs.backward(h, sum);
      EXPECT_EQ(ours.engine->gathered_norm().norm, theirs.engine->gathered_norm().norm);
      EXPECT_EQ(ours.step().grad_norm, theirs.step().grad_norm);
      ours.engine->synchronize();
      theirs.engine->synchronize();
      EXPECT_EQ(ours.weights, theirs.weights) << codec << ", step " << step;
    }
  }
}

TEST_P(SharedGradientsTest, AChangeThatIsNotFiniteSkipsTheStep) {
  Training ours = training(true);
  const std::vector<Matrix> before = ours.weights;
  std::vector<Matrix> g = ours.gradients();
  ours.backward(g);
  ours.engine->end_backward();
  ours.engine->core(1).data[3] = INFINITY;
  ours.engine->averaged(1);
  ours.engine->end_backward();
  EXPECT_TRUE(ours.step().skipped);
  EXPECT_EQ(ours.weights, before);
}

TEST_P(SharedGradientsTest, OnlyGradientsThatAreSharedAreAveraged) {
  Training shared = training(true), alone = training(false);
  EXPECT_THAT([&] { shared.engine->averaged(1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w1 has no gradient")));
  EXPECT_THAT([&] { alone.engine->averaged(1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w1 is not shared")));
  EXPECT_FALSE(shared.engine->calibrates(1));
}

INSTANTIATE_TEST_SUITE_P(
    Modes, SharedGradientsTest,
    testing::Combine(testing::Values(NormChoice::kExact, NormChoice::kSpeculative),
                     testing::Values(ResidualKind::kNone, ResidualKind::kFactored)));

}  // namespace
}  // namespace sluiceway::test
