// A factored second moment that mean_squares() advances, against the formula in double, on every
// backend of this build.
#include "kernels/factored_moment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/rng.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr double kBeta2 = 0.99, kFactor = 1.0 / 512, kEps = 1e-8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<std::pair<std::int64_t, std::int64_t>> kShapes = {
    {5, 7}, {67, 41}, {1, 1}, {523, 3}, {1201, 13}, {2, 8191}};  // More than its grid has threads.

using Vector = std::vector<double>;

// v, then the roots of sqrt(V / (1 - beta2^t)) / factor.
struct Reference {
  Vector v_row, v_col, row, col;

  Reference(const FactoredMoment& from, const FactoredMoment& means, std::int64_t t)
      : v_row(advanced(from.row, means.row)),
        v_col(advanced(from.col, means.col)),
        row(v_row),
        col(v_col) {
    double mean = 0;
    for (const double x : v_row) mean += x / static_cast<double>(v_row.size());
    for (double& x : row) x = mean > 0 ? std::sqrt(x / mean) / kFactor : 0;
    for (double& x : col) x = std::sqrt(x / (1 - std::pow(kBeta2, static_cast<double>(t))));
  }
  static Vector advanced(std::span<const float> from, std::span<const float> means) {
    Vector v(from.size());
    for (std::size_t i = 0; i < v.size(); ++i) {
      v[i] = kBeta2 * static_cast<double>(from[i]) +
             (1 - kBeta2) * kFactor * kFactor * static_cast<double>(means[i]);
    }
    return v;
  }
};

struct Owned {
  GuardedArray<float> row, col;

  Owned(Rng& rng, std::int64_t m, std::int64_t n)
      : row(squares(rng, m), 1), col(squares(rng, n), 3) {}
  FactoredMoment view() { return {row.span(), col.span()}; }
  std::vector<float> both() const {
    std::vector<float> all = row.values();
    const std::vector<float> more = col.values();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  bool guards_intact() const { return row.guards_intact() && col.guards_intact(); }

 private:
  static std::vector<float> squares(Rng& rng, std::int64_t count) {
    std::vector<float> x = rng.vector(count);
    for (float& each : x) each *= each;
    return x;
  }
};

class FactoredMomentTest : public BackendTest {
 protected:
  static MomentStep step(std::int64_t t) {
    return {.beta2 = kBeta2, .eps = kEps, .factor = kFactor, .step = t};
  }
  // `means` become those of r, and then the roots.
  static void advance(Matrix& r, Owned& from, Owned& means, const MomentStep& step, Owned& to,
                      ResidualVerdict* verdict = nullptr, MatrixView<float> core = {}) {
    on_backend::mean_squares(any_matrix(r), {.means = means.view(),
                                             .verdict = verdict,
                                             .share = 1e-5,
                                             .lr = 0.01,
                                             .core = core,
                                             .from = from.view(),
                                             .to = to.view(),
                                             .step = step});
  }
  static void take_means(Matrix& r, Owned& means) {
    on_backend::mean_squares(any_matrix(r), {.means = means.view()});
  }
  static void check_formula(std::uint64_t seed, std::int64_t m, std::int64_t n) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << m << "x" << n);
    Rng rng{seed};
    Owned from(rng, m, n), means(rng, m, n), to(rng, m, n);
    Matrix r = rng.matrix(m, n);
    const std::vector<float> before = from.both();
    take_means(r, means);
    const Reference expected(from.view(), means.view(), 3);
    const bool judged = seed == 6;
    ResidualVerdict verdict{.steps = 2};
    advance(r, from, means, step(3), to, judged ? &verdict : nullptr);
    EXPECT_EQ(verdict.steps, judged ? 3 : 2);
    const Tolerance tolerance{.eps = 1};
    EXPECT_TRUE(all_near(to.row, expected.v_row, tolerance));
    EXPECT_TRUE(all_near(to.col, expected.v_col, tolerance));
    EXPECT_TRUE(all_near(means.row, expected.row, tolerance));
    EXPECT_TRUE(all_near(means.col, expected.col, tolerance));
    EXPECT_EQ(from.both(), before);
    EXPECT_TRUE(from.guards_intact() && means.guards_intact() && to.guards_intact());
  }
};

TEST_P(FactoredMomentTest, MatchesTheFormulaOnOddShapes) {
  for (const std::uint64_t seed : {5U, 6U, 7U}) {
    for (const auto& [m, n] : kShapes) check_formula(seed, m, n);
  }
}

TEST_P(FactoredMomentTest, MatchesTheFormulaWhereADeviceTakesTheMatrixInPieces) {
  check_formula(6, 1, 525011);
}

TEST_P(FactoredMomentTest, AdvancesInPlaceToTheSameBits) {
  Rng rng{5}, same{6}, again{6};
  Owned from(rng, 67, 523), to(rng, 67, 523), means(same, 67, 523), same_means(again, 67, 523);
  Matrix r = rng.matrix(67, 523);
  advance(r, from, means, step(2), to);
  advance(r, from, same_means, step(2), from);
  EXPECT_EQ(from.both(), to.both());
  EXPECT_EQ(same_means.both(), means.both());
}

TEST_P(FactoredMomentTest, AVerdictCountsTheStepsThatTrain) {
  Rng rng{9};
  Owned moment(rng, 67, 41), means(rng, 67, 41);
  Matrix r = rng.matrix(67, 41), core(1, 1);
  take_means(r, means);
  const std::vector<float> plain = means.both();
  const Reference expected(moment.view(), means.view(), 5);
  ResidualVerdict verdict{.steps = 4};
  advance(r, moment, means, step(1), moment, &verdict);
  EXPECT_EQ(verdict.steps, 5);
  EXPECT_TRUE(all_near(moment.row, expected.v_row, {.eps = 1}));
  EXPECT_TRUE(all_near(means.col, expected.col, {.eps = 1}));

  EXPECT_TRUE(verdict.trains);
  core(0, 0) = 1e15F;  // Beside it the residual is rounding.
  const std::vector<float> before = moment.both();
  advance(r, moment, means, step(1), moment, &verdict, core.view());
  EXPECT_EQ(verdict.steps, 5);
  EXPECT_EQ(moment.both(), before);
  EXPECT_EQ(means.both(), plain);
}

TEST_P(FactoredMomentTest, AnEmptyMatrixDoesNotAdvanceIt) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{0, 7}, {7, 0}, {0, 0}}) {
    Rng rng{10};
    Owned moment(rng, m, n), means(rng, m, n);
    Matrix r(m, n);
    const std::vector<float> before = moment.both();
    ResidualVerdict verdict{.steps = 3, .trains = true};
    advance(r, moment, means, step(1), moment, &verdict);
    EXPECT_FALSE(verdict.trains) << m << "x" << n;
    EXPECT_EQ(verdict.steps, 3);
    EXPECT_EQ(moment.both(), before);
    for (const float x : means.both()) EXPECT_EQ(x, 0);
  }
}

TEST_P(FactoredMomentTest, AMomentThatIsNotFiniteDividesToZero) {
  for (const float bad : {kInfinity, kNan}) {
    for (const bool of_row : {true, false}) {
      Rng rng{8};
      Owned moment(rng, 5, 307), means(rng, 5, 307);
      Matrix r = rng.matrix(5, 307);
      (of_row ? moment.row[2] : r(1, 301)) = bad;
      moment.col[1] = 0;
      advance(r, moment, means, step(1), moment);
      for (std::size_t i = 0; i < means.row.size(); ++i) EXPECT_EQ(means.row[i], kInfinity);
      for (std::size_t j = 0; j < means.col.size(); ++j) EXPECT_EQ(means.col[j], 1.0F);
    }
  }
}

TEST_P(FactoredMomentTest, ZerosHaveRootsOfZero) {
  Rng rng{7};
  Owned moment(rng, 5, 7), means(rng, 5, 7);
  Matrix r = rng.matrix(5, 7);
  moment.row[3] = 0;  // One row first, then all.
  for (std::int64_t j = 0; j < 7; ++j) r(3, j) = 0;
  advance(r, moment, means, step(1), moment);
  EXPECT_EQ(means.row[3], 0);
  EXPECT_GT(means.row[2], 0);
  for (GuardedArray<float>* x : {&moment.row, &moment.col}) {
    for (float& each : x->span()) each = 0;
  }
  r = Matrix(5, 7);
  advance(r, moment, means, step(2), moment);
  for (const float x : means.both()) EXPECT_EQ(x, 0);
}

TEST_P(FactoredMomentTest, RejectsAMomentOfAnotherShape) {
  Rng rng{3};
  Owned moment(rng, 5, 7), means(rng, 5, 8);
  Matrix r = rng.matrix(5, 8);
  EXPECT_THAT([&] { advance(r, moment, means, step(1), moment); },
              ThrowsMessage<InvalidArgument>(HasSubstr("moment of 5x7, expected 5x8")));
}

TEST(FactoredRootsTest, EpsilonIsInUnitsOfTheGradientAsItIs) {
  Rng rng{4};
  Owned moment(rng, 5, 7), means(rng, 5, 7);
  const MomentStep step{.beta2 = kBeta2, .eps = kEps, .factor = kFactor};
  const FactoredRoots roots = MeansPass{.means = means.view(), .step = step}.roots();
  EXPECT_FLOAT_EQ(roots.eps, static_cast<float>(kEps / kFactor));
  EXPECT_EQ(roots.row.data(), means.row.data());
}

INSTANTIATE_TEST_SUITE_P(Kernels, FactoredMomentTest, testing::ValuesIn(built_backends("residual")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
