// A factored second moment of the core against its formula in double, over norm modes and tiers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "tests/runtime/engine/subspace/training.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

// AdamW whose second moment is the means of rows and columns [Adafactor] algorithm 4, its direction
// clipped at a root mean square of 1.
class FactoredReference {
 public:
  FactoredReference(std::int64_t rows, std::int64_t cols)
      : m_(rows, cols),
        row_(static_cast<std::size_t>(rows)),
        col_(static_cast<std::size_t>(cols)) {}

  void step(const Matrix& g, MatrixF64& w) {
    ++t_;
    const auto rows = static_cast<std::size_t>(g.rows), cols = static_cast<std::size_t>(g.cols);
    std::vector<double> row(rows), col(cols);
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < cols; ++j) {
        const double x = to_f64(g.v[i * cols + j]);
        row[i] += x * x / static_cast<double>(cols);
        col[j] += x * x / static_cast<double>(rows);
        m_.v[i * cols + j] += (1 - kBeta1) * (x - m_.v[i * cols + j]);
      }
    }
    double mean = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      row_[i] = kBeta2 * row_[i] + (1 - kBeta2) * row[i];
      mean += row_[i] / static_cast<double>(rows);
    }
    for (std::size_t j = 0; j < cols; ++j) col_[j] = kBeta2 * col_[j] + (1 - kBeta2) * col[j];
    std::vector<double> direction(rows * cols);
    double squares = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      for (std::size_t j = 0; j < cols; ++j) {
        const double v = row_[i] * col_[j] / mean / (1 - std::pow(kBeta2, t_));
        const double m = m_.v[i * cols + j] / (1 - std::pow(kBeta1, t_));
        direction[i * cols + j] = m / (std::sqrt(v) + kEps);
        squares += direction[i * cols + j] * direction[i * cols + j];
      }
    }
    const double clip = std::max(1.0, std::sqrt(squares / static_cast<double>(rows * cols)));
    for (std::size_t k = 0; k < direction.size(); ++k) {
      w.v[k] = (1 - kLr * kDecay) * w.v[k] - kLr * direction[k] / clip;
    }
  }

 private:
  MatrixF64 m_;
  std::vector<double> row_, col_;
  int t_ = 0;
};

using Mode = std::tuple<NormChoice, CoreTier, WireFormat>;
class SecondMomentTest : public testing::TestWithParam<Mode> {};

TEST_P(SecondMomentTest, FactoredStepsAreThoseOfTheFormula) {
  const auto [norm, tier, wire] = GetParam();
  Training training(options_with(Order::kEdf, norm), "identity", wire, tier, ResidualKind::kNone,
                    SecondMoment::kFactored);
  std::vector<FactoredReference> reference;
  for (const Matrix& w : training.weights) reference.emplace_back(w.rows, w.cols);
  for (int step = 0; step < 5; ++step) {
    std::vector<Matrix> g = training.gradients();
    training.backward(g);
    EXPECT_FALSE(training.step().skipped);
    for (std::size_t i = 0; i < g.size(); ++i) reference[i].step(g[i], training.expected[i]);
    training.engine->synchronize();
    // The rounding of the wire, times the learning rate, once per step.
    const double rounded = wire == WireFormat::kF32 || tier == CoreTier::kDevice ? 2e-6 : 6e-4;
    for (std::size_t i = 0; i < g.size(); ++i) {
      EXPECT_TRUE(all_near(training.weights[i].v, training.expected[i].v,
                           {.abs = rounded * (step + 1), .eps = 8}))
          << "weight " << i << " step " << step;
    }
  }
}

TEST(SecondMomentElemsTest, FactoredKeepsDimensionsInsteadOfElements) {
  const CoreShape core{100, 300};
  EXPECT_EQ(second_moment_elems(SecondMoment::kFull, core), 30000);
  EXPECT_EQ(second_moment_elems(SecondMoment::kFactored, core), 400);
}

INSTANTIATE_TEST_SUITE_P(
    Engine, SecondMomentTest,
    testing::Combine(testing::Values(NormChoice::kExact, NormChoice::kSpeculative),
                     testing::Values(CoreTier::kHost, CoreTier::kDevice),
                     testing::Values(WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8)));

}  // namespace
}  // namespace sluiceway::test
