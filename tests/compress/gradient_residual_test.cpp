// GradientResidual against Adafactor in double, on the residual of dense projectors.
#include "compress/gradient_residual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compress/codec_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kM = 67, kN = 41;

// Adafactor without a first moment: means of squares by row and column, RMS clipped at 1.
class Reference {
 public:
  MatrixF64 update(const MatrixF64& r, const ResidualStep& step) {
    ++t_;
    for (std::int64_t i = 0; i < r.rows; ++i) rows_[at(i)] *= step.beta2;
    for (std::int64_t j = 0; j < r.cols; ++j) cols_[at(j)] *= step.beta2;
    for (std::int64_t i = 0; i < r.rows; ++i) {
      for (std::int64_t j = 0; j < r.cols; ++j) {
        const double square = (1 - step.beta2) * r(i, j) * r(i, j);
        rows_[at(i)] += square / static_cast<double>(r.cols);
        cols_[at(j)] += square / static_cast<double>(r.rows);
      }
    }
    double mean = 0;
    for (const double x : rows_) mean += x / static_cast<double>(r.rows);
    const double correction = 1 - std::pow(step.beta2, t_);
    MatrixF64 u = r;
    double squares = 0;
    for (std::int64_t i = 0; i < r.rows; ++i) {
      for (std::int64_t j = 0; j < r.cols; ++j) {
        u(i, j) /= std::sqrt(rows_[at(i)] * cols_[at(j)] / mean / correction) + step.eps;
        squares += u(i, j) * u(i, j);
      }
    }
    const double rms = std::sqrt(squares / static_cast<double>(r.rows * r.cols));
    for (double& x : u.v) x *= -step.lr / std::max(1.0, rms);
    return u;
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  std::vector<double> rows_ = std::vector<double>(kM), cols_ = std::vector<double>(kN);
  int t_ = 0;
};

class GradientResidualTest : public testing::Test {
 protected:
  Rng rng{8};
  Budget budget = Budget::unlimited();
  CodecConfig config{.name = "block_random", .seed = 3};
  std::unique_ptr<GradientCodec> codec =
      make_codec(config, kM, kN, kWeight, DeviceId::host(), budget);
  DensePair pair = drawn_pair(config, kM, kN);
  std::vector<float> scratch = scratch_of(*codec);
  const ResidualStep step{.lr = 0.01, .beta2 = 0.99, .eps = 1e-8, .factor = 1, .update = {}};

  GradientResidual make(ResidualKind kind) { return {kind, kM, kN, DeviceId::host(), budget, "w"}; }

  bool apply(GradientResidual& residual, Matrix g, Matrix& w, const ResidualStep& how) {
    Matrix s(codec->core().rows, codec->core().cols);
    codec->compress(any_matrix(g), 0.0F, s.view(), scratch, StreamRef::host());
    residual.apply(*codec, any_matrix(g), s.view(), any_matrix(w), {}, how, scratch,
                   StreamRef::host());
    return residual.trained(StreamRef::host());
  }
  MatrixF64 left_of(const Matrix& g, double factor = 1) const {
    MatrixF64 r = as_f64(g);
    const MatrixF64 seen = reference_expanded(reference_core(r, pair.p, pair.q), pair.p, pair.q);
    for (std::size_t i = 0; i < r.v.size(); ++i) r.v[i] = factor * (r.v[i] - seen.v[i]);
    return r;
  }
};

TEST_F(GradientResidualTest, FactoredMatchesAdafactorOverSteps) {
  GradientResidual residual = make(ResidualKind::kFactored);
  Reference reference;
  Matrix w = rng.matrix(kM, kN);
  MatrixF64 expected = as_f64(w);
  for (int t = 0; t < 5; ++t) {
    const Matrix g = rng.matrix(kM, kN, t == 3 ? 30 : 0.01);  // One step that needs the clip.
    const MatrixF64 update = reference.update(left_of(g), step);
    for (std::size_t i = 0; i < expected.v.size(); ++i) expected.v[i] += update.v[i];
    EXPECT_TRUE(apply(residual, g, w, step));
    EXPECT_TRUE(all_near(w, expected, {.abs = 2e-6}));
  }
  EXPECT_EQ(residual.steps(), 5);
}

TEST_F(GradientResidualTest, LossScaleChangesNothingButRounding) {
  GradientResidual plain = make(ResidualKind::kFactored), scaled = make(ResidualKind::kFactored);
  ResidualStep unscaling = step;
  Matrix w = rng.matrix(kM, kN), scaled_w = w;
  for (const float scale : {1024.0F, 4096.0F}) {
    const Matrix g = rng.matrix(kM, kN, 1e-3);
    Matrix scaled_g = g;
    for (float& x : scaled_g.v) x *= scale;
    unscaling.factor = 1 / scale;
    apply(plain, g, w, step);
    apply(scaled, scaled_g, scaled_w, unscaling);
  }
  EXPECT_TRUE(all_near(scaled_w, as_f64(w), {.abs = 1e-6}));
}

TEST_F(GradientResidualTest, SignStepsByTheLearningRateEverywhere) {
  GradientResidual residual = make(ResidualKind::kSign);
  const Matrix g = rng.matrix(kM, kN);
  Matrix w(kM, kN);
  EXPECT_TRUE(apply(residual, g, w, step));
  const MatrixF64 r = left_of(g);
  for (std::size_t i = 0; i < w.v.size(); ++i) {
    if (std::abs(r.v[i]) < 1e-5) continue;  // Rounding decides its sign.
    EXPECT_EQ(w.v[i], r.v[i] > 0 ? -0.01F : 0.01F);
  }
}

TEST_F(GradientResidualTest, WithoutACoreTheWholeGradientIsLeft) {
  const auto none = make_codec({.name = "none"}, kM, kN, kWeight, DeviceId::host(), budget);
  GradientResidual residual = make(ResidualKind::kFactored);
  const Matrix g = rng.matrix(kM, kN);
  Matrix w = rng.matrix(kM, kN), used = g;
  const MatrixF64 update = Reference().update(as_f64(g), step);
  MatrixF64 expected = as_f64(w);
  ResidualStep decaying = step;
  decaying.update.decay = 0.5F;
  for (std::size_t i = 0; i < expected.v.size(); ++i) {
    expected.v[i] = 0.5 * expected.v[i] + update.v[i];
  }
  residual.apply(*none, any_matrix(used), {}, any_matrix(w), {}, decaying, {}, StreamRef::host());
  EXPECT_TRUE(all_near(w, expected, {.abs = 1e-6}));
}

TEST_F(GradientResidualTest, SignOfWhatIsNotFiniteChangesNothing) {
  GradientResidual residual = make(ResidualKind::kSign);
  Matrix w = rng.matrix(kM, kN), g = rng.matrix(kM, kN);
  const Matrix before = w;
  g(5, 5) = HUGE_VALF;
  EXPECT_FALSE(apply(residual, g, w, step));
  EXPECT_EQ(w, before);
}

TEST_F(GradientResidualTest, WhatIsNotFiniteChangesNothing) {
  GradientResidual residual = make(ResidualKind::kFactored);
  Matrix w = rng.matrix(kM, kN), g = rng.matrix(kM, kN);
  apply(residual, g, w, step);
  const Matrix before = w;
  const std::vector<float> moments(residual.moments().begin(), residual.moments().end());
  g(66, 40) = std::nanf("");
  EXPECT_FALSE(apply(residual, g, w, step));
  EXPECT_EQ(w, before);
  EXPECT_EQ(residual.steps(), 1);
  EXPECT_TRUE(std::equal(moments.begin(), moments.end(), residual.moments().begin()));
}

TEST_F(GradientResidualTest, AColumnWhoseSquaresOverflowChangesNothing) {
  const auto none = make_codec({.name = "none"}, kM, kN, kWeight, DeviceId::host(), budget);
  GradientResidual residual = make(ResidualKind::kFactored);
  Matrix w = rng.matrix(kM, kN), g = rng.matrix(kM, kN);
  const Matrix before = w;
  for (std::int64_t i = 0; i < kM; ++i)
    g(i, 3) = 1e19F;  // Each square is finite, and so is the mean of a row.
  residual.apply(*none, any_matrix(g), {}, any_matrix(w), {}, step, {}, StreamRef::host());
  EXPECT_FALSE(residual.trained(StreamRef::host()));
  EXPECT_EQ(w, before);
  EXPECT_EQ(residual.steps(), 0);
}

TEST_F(GradientResidualTest, ZeroGradientLeavesTheWeight) {
  GradientResidual residual = make(ResidualKind::kFactored);
  Matrix w = rng.matrix(kM, kN);
  const Matrix before = w;
  EXPECT_TRUE(apply(residual, Matrix(kM, kN), w, step));
  EXPECT_EQ(w, before);
}

TEST_F(GradientResidualTest, RoundingOfAGradientThatFitsTheCoreTrainsNothing) {
  for (const ResidualKind kind : {ResidualKind::kFactored, ResidualKind::kSign}) {
    GradientResidual residual = make(kind);
    const Matrix core = rng.matrix(codec->core().rows, codec->core().cols);
    const MatrixF64 exact = reference_expanded(as_f64(core), pair.p, pair.q);
    Matrix held(kM, kN);
    for (std::size_t i = 0; i < held.v.size(); ++i) held.v[i] = static_cast<float>(exact.v[i]);
    Matrix w = rng.matrix(kM, kN);
    const Matrix before = w;
    EXPECT_FALSE(apply(residual, held, w, step));
    EXPECT_EQ(w, before);
    EXPECT_EQ(residual.steps(), 0);
    Matrix more = held;
    for (float& x : more.v) x += static_cast<float>(1e-3 * rng.normal());  // Not in the core.
    EXPECT_TRUE(apply(residual, more, w, step));
    EXPECT_NE(w, before);
  }
}

TEST_F(GradientResidualTest, LoadedStateGoesOnBitForBit) {
  GradientResidual first = make(ResidualKind::kFactored), second = make(ResidualKind::kFactored);
  Matrix w = rng.matrix(kM, kN);
  apply(first, rng.matrix(kM, kN), w, step);
  second.load(first.steps(), first.moments());
  Matrix other = w;
  const Matrix g = rng.matrix(kM, kN);
  apply(first, g, w, step);
  apply(second, g, other, step);
  EXPECT_EQ(w, other);
  const std::vector<float> few(3);
  EXPECT_THAT([&] { second.load(1, few); },
              ThrowsMessage<InvalidArgument>(HasSubstr("3 moments, expected 108")));
}

TEST_F(GradientResidualTest, ReservesExactlyWhatItNames) {
  const std::uint64_t before = budget.used(Tier::kDevice);
  {
    const GradientResidual residual = make(ResidualKind::kFactored);
    EXPECT_EQ(budget.used(Tier::kDevice) - before,
              GradientResidual::bytes(ResidualKind::kFactored, kM, kN));
  }
  EXPECT_EQ(budget.used(Tier::kDevice), before);
  EXPECT_EQ(GradientResidual::bytes(ResidualKind::kSign, kM, kN),
            4U * (kM + kN) + sizeof(ResidualVerdict));
}

TEST(ResidualNameTest, IsReadFromItsName) {
  EXPECT_EQ(parse_residual("none"), ResidualKind::kNone);
  EXPECT_EQ(parse_residual("factored"), ResidualKind::kFactored);
  EXPECT_EQ(parse_residual("sign"), ResidualKind::kSign);
  EXPECT_THAT([] { parse_residual("adafactor"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"adafactor\"")));
}

}  // namespace
}  // namespace sluiceway::test
