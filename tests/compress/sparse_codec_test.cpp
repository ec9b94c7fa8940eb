// Refreshes of the learned family: when they happen, what they change and what they never change.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compress/learner.h"
#include "tests/compress/codec_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

class SparseLearner : public ProjectorLearner {
 public:
  void leading_directions(const AnyMatrix& /*g*/, MatrixView<float> /*p*/, MatrixView<float> /*q*/,
                          std::uint64_t /*seed*/, StreamRef /*stream*/) final {
    ADD_FAILURE() << "a sparse codec asked for singular directions";
  }
};

// Multiplies its input, so that a test knows the result without learning.
class ScalingLearner final : public SparseLearner {
 public:
  explicit ScalingLearner(float factor) : factor_(factor) {}

  LearnOutcome learn(const AnyMatrix& /*g*/, const LearnableRows& p, const LearnableRows& q,
                     const LearnOptions& options, StreamRef /*stream*/) override {
    ++calls;
    last_options = options;
    for (float& x : p.value) x *= factor_;
    for (float& x : q.value) x *= factor_;
    return {.steps = 17};
  }

  int calls = 0;
  LearnOptions last_options;

 private:
  float factor_;
};

class ThrowingLearner final : public SparseLearner {
 public:
  LearnOutcome learn(const AnyMatrix& /*g*/, const LearnableRows& p, const LearnableRows& /*q*/,
                     const LearnOptions& /*options*/, StreamRef /*stream*/) override {
    p.value[0] = 42;
    throw OutOfMemory("learn: no memory");
  }
};

class SparseLearnedCodecTest : public testing::Test {
 protected:
  SparseLearnedCodecTest() {
    moments.m = rng.matrix(codec->core().rows, codec->core().cols);
    moments.v = rng.matrix(codec->core().rows, codec->core().cols);
    for (float& x : moments.v.v) x = x * x;
  }
  std::unique_ptr<GradientCodec> make() {
    return make_codec(config, m, n, kWeight, DeviceId::host(), budget);
  }
  RefreshOutcome refresh(ProjectorLearner& learner, const RefreshOptions& options) {
    std::vector<float> scratch = scratch_of(*codec);
    return codec->refresh(any_matrix(g), options, learner, moments.view(), scratch,
                          StreamRef::host());
  }
  double relative_bias(const DensePair& pair) {
    const BiasNorm norm = reference_bias(as_f64(g), pair.p, pair.q);
    return std::sqrt(norm.bias_sq / norm.grad_sq);
  }
  Matrix core_of_gradient() {
    Matrix s(codec->core().rows, codec->core().cols);
    std::vector<float> scratch = scratch_of(*codec);
    codec->compress(any_matrix(g), 0, s.view(), scratch, StreamRef::host());
    return s;
  }

  static constexpr std::int64_t m = 67, n = 41;
  const CodecConfig config{.name = "sparse_learned", .ratio = 0.5, .seed = 3};
  Rng rng{5};
  Budget budget = Budget::unlimited();
  Matrix g = rng.matrix(m, n);
  std::unique_ptr<GradientCodec> codec = make();
  OwnedMoments moments{codec->core()};
};

TEST_F(SparseLearnedCodecTest, FirstRefreshLearns) {
  ScalingLearner learner(0.5F);
  const RefreshOutcome outcome = refresh(learner, {.threshold = 0.5, .learn_steps = 33});
  EXPECT_TRUE(outcome.refreshed);
  EXPECT_EQ(learner.calls, 1);
  EXPECT_EQ(learner.last_options.max_steps, 33);
  EXPECT_EQ(learner.last_options.threshold, 0.5);
  EXPECT_EQ(outcome.learn_steps, 17);
  EXPECT_EQ(codec->generation(), 1U);
}

TEST_F(SparseLearnedCodecTest, KnobsOfTheLearnerReachIt) {
  ScalingLearner learner(1.0F);
  refresh(learner, {});
  EXPECT_EQ(learner.last_options.learning_rate, LearnOptions{}.learning_rate);
  EXPECT_EQ(learner.last_options.beta, LearnOptions{}.beta);
  refresh(learner, {.learn_rate = 0.25, .beta = 0.5});
  EXPECT_EQ(learner.last_options.learning_rate, 0.25);
  EXPECT_EQ(learner.last_options.beta, 0.5);
}

TEST_F(SparseLearnedCodecTest, LearningMayStartFromNormalValues) {
  ScalingLearner learner(1.0F);
  refresh(learner, {.init = SparseInit::kNormal});
  SparseProjector expected(sparse_dims(config, m, n), config.nnz, {config.seed, 0, kWeight},
                           DeviceId::host(), budget);
  expected.draw({config.seed, 1, kWeight}, SparseInit::kNormal);
  const MatrixF64 core = reference_core(as_f64(g), dense(expected.p()), dense(expected.q()));
  EXPECT_TRUE(all_near(core_of_gradient(), core, {.abs = 1e-4}));
  EXPECT_NE(expected.p().value[0], drawn_pair(config, m, n, 1).p(0, expected.p().index[0]));
}

TEST_F(SparseLearnedCodecTest, OutcomeTellsBothBiasesAndTheTime) {
  ScalingLearner learner(0.5F);
  DensePair next = drawn_pair(config, m, n, 1);
  for (double& x : next.p.v) x *= 0.5;
  for (double& x : next.q.v) x *= 0.5;
  const double before = relative_bias(drawn_pair(config, m, n));
  const RefreshOutcome outcome = refresh(learner, {});
  EXPECT_NEAR(outcome.bias_before, before, 1e-5 * before);
  EXPECT_NEAR(outcome.bias_after, relative_bias(next), 1e-5);
  EXPECT_GT(outcome.seconds, 0);
}

TEST_F(SparseLearnedCodecTest, RefreshDrawsNewPositionsAndUsesTheLearnedValues) {
  ScalingLearner learner(0.5F);
  refresh(learner, {});
  const DensePair next = drawn_pair(config, m, n, 1);
  EXPECT_NE(next.p, drawn_pair(config, m, n, 0).p);
  MatrixF64 expected = reference_core(as_f64(g), next.p, next.q);
  for (double& x : expected.v) x *= 0.25;
  EXPECT_TRUE(all_near(core_of_gradient(), expected, {.abs = 1e-5}));
}

TEST_F(SparseLearnedCodecTest, EveryRefreshHasPositionsOfItsOwn) {
  ScalingLearner learner(1.0F);
  refresh(learner, {});
  refresh(learner, {});
  EXPECT_EQ(codec->generation(), 2U);
  const DensePair second = drawn_pair(config, m, n, 2);
  EXPECT_TRUE(
      all_near(core_of_gradient(), reference_core(as_f64(g), second.p, second.q), {.abs = 1e-4}));
}

TEST_F(SparseLearnedCodecTest, BiasBelowTheThresholdLeavesAllAsItIs) {
  ScalingLearner learner(0.5F);
  const std::vector<std::byte> before = codec->save();
  const OwnedMoments old = moments;
  const RefreshOutcome outcome = refresh(learner, {.threshold = 100});
  EXPECT_FALSE(outcome.refreshed);
  EXPECT_EQ(outcome.bias_after, outcome.bias_before);
  EXPECT_EQ(learner.calls, 0);
  EXPECT_EQ(codec->save(), before);
  EXPECT_EQ(moments.m, old.m);
}

TEST_F(SparseLearnedCodecTest, MomentsAreCarriedIntoTheNewSubspace) {
  ScalingLearner learner(1.0F);
  const DensePair old = drawn_pair(config, m, n, 0), next = drawn_pair(config, m, n, 1);
  const MatrixF64 a = product(transposed(next.p), old.p), b = product(transposed(old.q), next.q);
  const MatrixF64 expected = product(product(a, as_f64(moments.m)), b);
  refresh(learner, {});
  EXPECT_TRUE(all_near(moments.m, expected, {.abs = 1e-4}));
}

TEST_F(SparseLearnedCodecTest, MomentsAreKeptOrResetOnRequest) {
  ScalingLearner learner(1.0F);
  const OwnedMoments old = moments;
  refresh(learner, {.transport = MomentTransport::kKeep});
  EXPECT_EQ(moments.m, old.m);
  EXPECT_EQ(moments.v, old.v);
  refresh(learner, {.transport = MomentTransport::kReset});
  EXPECT_EQ(moments.v, Matrix(moments.v.rows, moments.v.cols));
}

TEST_F(SparseLearnedCodecTest, GradientWithoutInformationTeachesNothing) {
  ScalingLearner learner(0.5F);
  for (const float bad : {0.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    g = Matrix(m, n);
    g(3, 5) = bad;
    EXPECT_FALSE(refresh(learner, {}).refreshed) << bad;
  }
  EXPECT_EQ(learner.calls, 0);
  EXPECT_EQ(codec->generation(), 0U);
}

TEST_F(SparseLearnedCodecTest, LearnerThatDivergedIsNotBelieved) {
  ScalingLearner learner(std::numeric_limits<float>::infinity());
  const std::vector<std::byte> before = codec->save();
  const OwnedMoments old = moments;
  EXPECT_FALSE(refresh(learner, {}).refreshed);
  EXPECT_EQ(codec->save(), before);
  EXPECT_EQ(moments.m, old.m);
}

TEST_F(SparseLearnedCodecTest, LearnerThatThrowsLeavesCodecMomentsAndBudgetAlone) {
  ThrowingLearner learner;
  const std::vector<std::byte> before = codec->save();
  const OwnedMoments old = moments;
  const std::uint64_t used = budget.used(Tier::kDevice);
  EXPECT_THROW(refresh(learner, {}), OutOfMemory);
  EXPECT_EQ(codec->save(), before);
  EXPECT_EQ(moments.m, old.m);
  EXPECT_EQ(budget.used(Tier::kDevice), used);
}

TEST_F(SparseLearnedCodecTest, BudgetIsAsBeforeAfterARefresh) {
  ScalingLearner learner(0.5F);
  const std::uint64_t used = budget.used(Tier::kDevice);
  refresh(learner, {});
  EXPECT_EQ(budget.used(Tier::kDevice), used);
}

TEST_F(SparseLearnedCodecTest, LearnedPairSavedAndLoadedIsBitIdentical) {
  ScalingLearner learner(0.7F);
  refresh(learner, {});
  const auto loaded = make();
  loaded->load(codec->save());
  EXPECT_EQ(loaded->generation(), 1U);
  EXPECT_EQ(loaded->save(), codec->save());
  const Matrix expected = core_of_gradient();
  codec->load(loaded->save());
  EXPECT_EQ(core_of_gradient(), expected);
}

TEST_F(SparseLearnedCodecTest, ReloadedCodecRefreshesLikeTheOriginal) {
  ScalingLearner learner(0.7F);
  refresh(learner, {});
  const auto loaded = make();
  loaded->load(codec->save());
  OwnedMoments twin = moments;
  std::vector<float> space = scratch_of(*loaded);
  loaded->refresh(any_matrix(g), {}, learner, twin.view(), space, StreamRef::host());
  refresh(learner, {});
  EXPECT_EQ(loaded->save(), codec->save());
  EXPECT_EQ(twin.m, moments.m);
}

TEST_F(SparseLearnedCodecTest, FamiliesThatDoNotLearnIgnoreARefresh) {
  ScalingLearner learner(0.5F);
  for (const char* name : {"identity", "block_random"}) {
    const auto other = make_codec({.name = name}, m, n, kWeight, DeviceId::host(), budget);
    OwnedMoments theirs(other->core());
    const std::vector<std::byte> before = other->save();
    EXPECT_FALSE(other->learns());
    std::vector<float> space = scratch_of(*other);
    EXPECT_FALSE(other->refresh(any_matrix(g), {}, learner, theirs.view(), space, StreamRef::host())
                     .refreshed);
    EXPECT_EQ(other->save(), before);
  }
  EXPECT_EQ(learner.calls, 0);
}

}  // namespace
}  // namespace sluiceway::test
