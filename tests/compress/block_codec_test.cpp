// Fitted block families: when they are calibrated, what they keep, how moments follow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compress/codec_fixture.h"
#include "tests/compress/exact_learner.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

double relative_bias(const GradientCodec& codec, Matrix& g) {
  std::vector<float> scratch = scratch_of(codec);
  const BiasNorm norm = codec.bias(any_matrix(g), scratch, StreamRef::host());
  return std::sqrt(norm.bias_sq / norm.grad_sq);
}

class FittedCodecTest : public testing::TestWithParam<const char*> {
 protected:
  static constexpr std::int64_t kM = 64, kN = 48;

  CodecConfig config{.name = GetParam(), .block = 16, .seed = 3};
  Rng rng{11};
  Budget budget = Budget::unlimited();
  std::unique_ptr<GradientCodec> codec =
      make_codec(config, kM, kN, kWeight, DeviceId::host(), budget);
  OwnedMoments moments{codec->core()};
  ExactLearner learner;

  Matrix gradient() { return low_rank_gradient(rng, rng.matrix(kM, 3), rng.matrix(kN, 3), 0.1); }
  RefreshOutcome refresh(Matrix& g, const RefreshOptions& options = {}) {
    std::vector<float> scratch = scratch_of(*codec);
    return codec->refresh(any_matrix(g), options, learner, moments.view(), scratch,
                          StreamRef::host());
  }
};

TEST_P(FittedCodecTest, WantsOneCalibrationWhateverTheThreshold) {
  Matrix g = gradient();
  EXPECT_TRUE(codec->learns());
  EXPECT_TRUE(codec->wants_calibration());
  EXPECT_TRUE(refresh(g, {.threshold = 100}).refreshed);
  EXPECT_FALSE(codec->wants_calibration());
  EXPECT_EQ(codec->generation(), 1U);
  EXPECT_FALSE(refresh(g, {.threshold = 100}).refreshed);
}

TEST_P(FittedCodecTest, GradientOfZerosOrNanTeachesNothing) {
  Matrix zero(kM, kN), bad = gradient();
  bad(5, 7) = std::nanf("");
  EXPECT_FALSE(refresh(zero).refreshed);
  EXPECT_FALSE(refresh(bad).refreshed);
  EXPECT_TRUE(codec->wants_calibration());
}

TEST_P(FittedCodecTest, FittedProjectorLosesLessThanARandomOne) {
  Matrix g = gradient();
  refresh(g);
  CodecConfig random = config;
  random.name = "block_random";
  EXPECT_LT(relative_bias(*codec, g),
            relative_bias(*make_codec(random, kM, kN, kWeight, DeviceId::host(), budget), g));
}

TEST_P(FittedCodecTest, ReservesBothProjectorsOnlyDuringARefresh) {
  const std::uint64_t before = budget.used(Tier::kDevice);
  Matrix g = gradient();
  refresh(g);
  EXPECT_EQ(budget.used(Tier::kDevice), before);
}

TEST_P(FittedCodecTest, TheSecondRefreshCarriesMomentsOverAsDenseProductsDo) {
  Matrix first = gradient(), second = gradient();
  refresh(first);
  const DensePair old_pair = stored_pair(*codec, config, kM, kN);
  moments.m = rng.matrix(codec->core().rows, codec->core().cols);
  moments.v = rng.matrix(codec->core().rows, codec->core().cols);
  for (float& x : moments.v.v) x = std::abs(x);
  const MatrixF64 m = as_f64(moments.m), v = as_f64(moments.v);
  ASSERT_TRUE(refresh(second).refreshed);
  const DensePair new_pair = stored_pair(*codec, config, kM, kN);
  MatrixF64 a = product(transposed(new_pair.p), old_pair.p);
  MatrixF64 b = product(transposed(old_pair.q), new_pair.q);
  EXPECT_TRUE(all_near(moments.m, product(product(a, m), b), {.abs = 1e-5}));
  for (double& x : a.v) x *= x;
  for (double& x : b.v) x *= x;
  EXPECT_TRUE(all_near(moments.v, product(product(a, v), b), {.abs = 1e-5}));
}

INSTANTIATE_TEST_SUITE_P(Families, FittedCodecTest,
                         testing::Values("svd", "block_pca", "galore", "topk_columns"));

TEST(SvdCodecTest, KeepsAllOfAGradientOfItsRank) {
  Rng rng(12);
  Budget budget = Budget::unlimited();
  const auto codec =
      make_codec({.name = "svd", .ratio = 0.25}, 32, 24, kWeight, DeviceId::host(), budget);
  Matrix g = low_rank_gradient(rng, rng.matrix(32, 6), rng.matrix(24, 6), 0);
  OwnedMoments moments(codec->core());
  ExactLearner learner;
  std::vector<float> scratch = scratch_of(*codec);
  codec->refresh(any_matrix(g), {}, learner, moments.view(), scratch, StreamRef::host());
  EXPECT_LT(relative_bias(*codec, g), 1e-5);
}

TEST(SvdCodecTest, HasNoMoreDirectionsThanTheShorterSide) {
  const CoreShape core = core_shape({.name = "svd", .ratio = 0.25}, 16, 256);
  EXPECT_EQ(core.rows, 4);
  EXPECT_EQ(core.cols, 16);
}

TEST(CountSketchTest, ColumnsAreOrthonormalOrEmpty) {
  Budget budget = Budget::unlimited();
  const CodecConfig config{.name = "sparse_random", .nnz = 1, .seed = 3};
  const auto codec = make_codec(config, 64, 48, kWeight, DeviceId::host(), budget);
  std::vector<float> scratch = scratch_of(*codec);
  // The P D Q^T of unit cores span the columns: their squares are 1, or 0 where no row drew one.
  for (std::int64_t c = 0; c < codec->core().rows; ++c) {
    Matrix w(64, 48), d(codec->core().rows, codec->core().cols);
    d(c, c % d.cols) = 1;
    codec->apply(any_matrix(w), {}, any_matrix(d), {.alpha = 1}, scratch, StreamRef::host());
    double squares = 0;
    for (const float x : w.v) squares += to_f64(x) * to_f64(x);
    EXPECT_TRUE(squares == 0 || std::abs(squares - 1) < 1e-5) << c << ": " << squares;
  }
}

}  // namespace
}  // namespace sluiceway::test
