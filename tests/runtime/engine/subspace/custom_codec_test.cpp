// The engine trains, saves and resumes with a codec from outside this library.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/every_kth_row.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

class CustomCodecTest : public testing::Test {
 protected:
  CustomCodecTest() {
    static const bool registered = (register_codec(every_kth_row()), true);
    EXPECT_TRUE(registered);
  }

  static Training training(ResidualKind residual) {
    return {options_with(Order::kEdf, NormChoice::kExact), "every_kth_row", WireFormat::kF32,
            CoreTier::kHost, residual};
  }

  static void step(Training& training) {
    std::vector<Matrix> g = training.gradients();
    training.backward(g);
    training.step();
    training.engine->synchronize();
  }
};

class CustomCodecResumeTest : public CustomCodecTest,
                              public testing::WithParamInterface<ResidualKind> {};

TEST_P(CustomCodecResumeTest, AnEngineWithItsSavedStateGoesOnWithTheSameBits) {
  Training first = training(GetParam()), second = training(GetParam());
  const std::vector<Matrix> before = first.weights;
  for (int i = 0; i < 3; ++i) {
    step(first);
    second.gradients();  // Advances to the same random numbers.
  }
  EXPECT_NE(first.weights, before);
  second.weights = first.weights;
  second.engine->set_committed_steps(first.engine->committed_steps());
  for (int index = 0; index < 3; ++index) {
    second.engine->load_weight(index, first.engine->save_weight(index));
  }
  for (int i = 0; i < 3; ++i) {
    step(first);
    step(second);
  }
  EXPECT_EQ(first.weights, second.weights);
}

INSTANTIATE_TEST_SUITE_P(Engine, CustomCodecResumeTest,
                         testing::Values(ResidualKind::kNone, ResidualKind::kFactored));

TEST_F(CustomCodecTest, KeptRowsTrainAsWithAdamWAndTheOthersOnlyDecay) {
  Training training = CustomCodecTest::training(ResidualKind::kNone);
  std::vector<Matrix> sum = training.gradients();
  std::vector<Matrix> g = sum;
  training.backward(g);
  training.step();
  training.engine->synchronize();
  const std::vector<MatrixF64> before = training.expected;
  training.expect_step(sum, 1);
  for (std::size_t w = 0; w < sum.size(); ++w) {
    for (std::int64_t i = 0; i < sum[w].rows; ++i) {
      for (std::int64_t j = 0; j < sum[w].cols; ++j) {
        const double kept = training.expected[w](i, j);
        const double expected = i % 4 == 0 ? kept : (1 - kLr * kDecay) * before[w](i, j);
        EXPECT_NEAR(to_f64(training.weights[w](i, j)), expected, 2e-6)
            << w << ": " << i << "," << j;
      }
    }
  }
}

}  // namespace
}  // namespace sluiceway::test
