// Learning: lowers the bias on unseen gradients, stops when it should, and is reproducible.
#include "compress/learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compress/codec_fixture.h"
#include "tests/compress/exact_learner.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A pair as drawn for a codec, with values that learning may change.
struct LearnablePair {
  LearnablePair(std::int64_t m, std::int64_t n, std::int64_t dm, std::int64_t dn, std::int64_t nnz)
      : budget(Budget::unlimited()),
        projector({.m = m, .n = n, .dm = dm, .dn = dn}, nnz, {1, 0, kWeight}, DeviceId::host(),
                  budget) {}

  LearnableRows p() { return half(projector.p(), projector.p_value()); }
  LearnableRows q() { return half(projector.q(), projector.q_value()); }
  LearnOutcome learn(Matrix& g, const LearnOptions& options) {
    return make_torch_learner()->learn(any_matrix(g), p(), q(), options, StreamRef::host());
  }
  double bias(const Matrix& g) const {
    const BiasNorm norm = reference_bias(as_f64(g), dense(projector.p()), dense(projector.q()));
    return std::sqrt(norm.bias_sq / norm.grad_sq);
  }
  std::vector<float> values() {
    std::vector<float> out(projector.p_value().begin(), projector.p_value().end());
    out.insert(out.end(), projector.q_value().begin(), projector.q_value().end());
    return out;
  }
  static LearnableRows half(const SparseRows& rows, std::span<float> value) {
    return {rows.index, value, rows.rows, rows.cols, rows.nnz};
  }

  Budget budget;
  SparseProjector projector;
};

class TorchLearnerTest : public testing::Test {
 protected:
  static constexpr std::int64_t m = 96, n = 64;
  Rng rng{3};
  Matrix left = rng.matrix(m, 4), right = rng.matrix(n, 4);
  Matrix g = low_rank_gradient(rng, left, right, 0.5);
  LearnablePair pair{m, n, m / 2, n / 2, 4};
};

TEST_F(TorchLearnerTest, LowersTheBiasOnHeldOutGradients) {
  const Matrix held_out = low_rank_gradient(rng, left, right, 0.5);
  const double before = pair.bias(held_out);
  const LearnOutcome outcome = pair.learn(g, {.max_steps = 100});
  EXPECT_EQ(outcome.steps, 100);
  EXPECT_LT(pair.bias(held_out), 0.5 * before);
  EXPECT_LT(pair.bias(held_out), 0.75) << "the strong directions are common to both gradients";
}

TEST_F(TorchLearnerTest, OutcomeTellsTheTrueBiases) {
  const double before = pair.bias(g);
  const LearnOutcome outcome = pair.learn(g, {.max_steps = 40});
  EXPECT_NEAR(outcome.bias_before, before, 1e-4 * before);
  EXPECT_NEAR(outcome.bias_after, pair.bias(g), 1e-4);
}

TEST_F(TorchLearnerTest, StopsAtTheThreshold) {
  const LearnOutcome outcome = pair.learn(g, {.threshold = 1.0, .max_steps = 1000});
  EXPECT_LE(outcome.bias_after, 1.0);
  EXPECT_GT(outcome.steps, 0);
  EXPECT_LT(outcome.steps, 200);
}

TEST_F(TorchLearnerTest, ZeroStepsAndAThresholdAlreadyMetLeaveTheValues) {
  const std::vector<float> before = pair.values();
  EXPECT_EQ(pair.learn(g, {.max_steps = 0}).steps, 0);
  EXPECT_EQ(pair.learn(g, {.threshold = 100}).steps, 0);
  EXPECT_EQ(pair.values(), before);
}

TEST_F(TorchLearnerTest, KeepsTheBestValuesItMet) {
  const LearnOutcome outcome = pair.learn(g, {.max_steps = 30, .learning_rate = 5.0});
  EXPECT_LE(outcome.bias_after, outcome.bias_before);
  EXPECT_NEAR(outcome.bias_after, pair.bias(g), 1e-3 * outcome.bias_after);
}

TEST_F(TorchLearnerTest, EqualCallsGiveEqualBits) {
  LearnablePair twin(m, n, m / 2, n / 2, 4);
  pair.learn(g, {.max_steps = 20});
  twin.learn(g, {.max_steps = 20});
  EXPECT_EQ(pair.values(), twin.values());
}

TEST_F(TorchLearnerTest, RegulariserShrinksTheValues) {
  LearnablePair free(m, n, m / 2, n / 2, 4);
  free.learn(g, {.max_steps = 60, .beta = 0});
  pair.learn(g, {.max_steps = 60, .beta = 1});
  const auto sum_squares = [](const std::vector<float>& x) {
    double sum = 0;
    for (const float v : x) sum += to_f64(v) * to_f64(v);
    return sum;
  };
  EXPECT_LT(sum_squares(pair.values()), sum_squares(free.values()));
}

TEST_F(TorchLearnerTest, StridedAndSixteenBitGradientsAreRead) {
  LearnablePair twin(m, n, m / 2, n / 2, 4);
  PaddedMatrix<float> padded(g);
  make_torch_learner()->learn(padded.any(), twin.p(), twin.q(), {.max_steps = 3},
                              StreamRef::host());
  pair.learn(g, {.max_steps = 3});
  EXPECT_EQ(pair.values(), twin.values());

  BasicMatrix<bf16> g16 = rounded_to<bf16>(g);
  LearnablePair third(m, n, m / 2, n / 2, 4);
  const LearnOutcome outcome = make_torch_learner()->learn(any_matrix(g16), third.p(), third.q(),
                                                           {.max_steps = 0}, StreamRef::host());
  EXPECT_NEAR(outcome.bias_before, third.bias(g), 0.02);
}

TEST_F(TorchLearnerTest, OddShapesLearnToo) {
  for (const auto& [rows, cols] : {std::pair{1, 37}, std::pair{37, 1}, std::pair{67, 41}}) {
    Matrix small = rng.matrix(rows, cols);
    LearnablePair odd(rows, cols, (rows + 1) / 2, (cols + 1) / 2, 3);
    const double before = odd.bias(small);
    odd.learn(small, {.max_steps = 50});
    EXPECT_LE(odd.bias(small), before) << rows << "x" << cols;
  }
}

TEST_F(TorchLearnerTest, WrongShapesAndDevicesAreRefused) {
  Matrix wide = rng.matrix(m, n + 1);
  EXPECT_THAT([&] { pair.learn(wide, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("Q is 64x32")));
  EXPECT_THAT(
      [&] {
        make_torch_learner()->learn(any_matrix(g), pair.p(), pair.q(), {},
                                    StreamRef::cuda(1, nullptr));
      },
      ThrowsMessage<Unavailable>(HasSubstr("CUDA device 1")));
}

TEST_F(TorchLearnerTest, CodecLearnsThroughItsInterface) {
  Budget budget = Budget::unlimited();
  const auto codec =
      make_codec({.name = "sparse_learned", .ratio = 0.5}, m, n, kWeight, DeviceId::host(), budget);
  OwnedMoments moments(codec->core());
  const auto learner = make_torch_learner();
  std::vector<float> scratch = scratch_of(*codec);
  const RefreshOutcome outcome = codec->refresh(any_matrix(g), {.learn_steps = 50}, *learner,
                                                moments.view(), scratch, StreamRef::host());
  EXPECT_TRUE(outcome.refreshed);
  EXPECT_EQ(outcome.learn_steps, 50);
  EXPECT_LT(outcome.bias_after, 0.6 * outcome.bias_before);
  const BiasNorm after = codec->bias(any_matrix(g), scratch, StreamRef::host());
  EXPECT_NEAR(outcome.bias_after, std::sqrt(after.bias_sq / after.grad_sq), 1e-9);
}

// ---- Leading directions -------------------------------------------------------------------------

double energy_left(const Matrix& p, const Matrix& g) {
  double sum = 0;
  for (const double x : product(transposed(as_f64(p)), as_f64(g)).v) sum += x * x;
  return sum;
}

double energy_right(const Matrix& q, const Matrix& g) {
  double sum = 0;
  for (const double x : product(as_f64(g), as_f64(q)).v) sum += x * x;
  return sum;
}

class LeadingDirectionsTest : public TorchLearnerTest {
 protected:
  void find(Matrix& g_, Matrix& p, Matrix& q, std::uint64_t seed = 1) {
    make_torch_learner()->leading_directions(any_matrix(g_), p.view(), q.view(), seed,
                                             StreamRef::host());
  }
};

TEST_F(LeadingDirectionsTest, HoldAlmostAllThatTheBestOnesHold) {
  for (const double noise : {0.0, 0.5}) {
    Matrix gradient = low_rank_gradient(rng, left, right, noise);
    Matrix p(m, 12), q(n, 12), best_p(m, 12), best_q(n, 12);
    find(gradient, p, q);
    ExactLearner().leading_directions(any_matrix(gradient), best_p.view(), best_q.view(), 0,
                                      StreamRef::host());
    EXPECT_GT(energy_left(p, gradient), 0.99 * energy_left(best_p, gradient));
    EXPECT_GT(energy_right(q, gradient), 0.99 * energy_right(best_q, gradient));
    for (const Matrix& x : {p, q}) {
      const MatrixF64 gram = product(transposed(as_f64(x)), as_f64(x));
      EXPECT_TRUE(all_near(gram, dense_identity(12), {.abs = 1e-5}));
    }
  }
}

TEST_F(LeadingDirectionsTest, ComeInOrderAndRepeatThemselves) {
  Matrix p(m, 12), q(n, 12), again_p(m, 12), again_q(n, 12);
  find(g, p, q);
  find(g, again_p, again_q);
  EXPECT_EQ(p, again_p);
  EXPECT_EQ(q, again_q);
  Matrix first(m, 4), unused;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t c = 0; c < 4; ++c) first(i, c) = p(i, c);
  }
  Matrix best(m, 4);
  ExactLearner().leading_directions(any_matrix(g), best.view(), unused.view(), 0,
                                    StreamRef::host());
  EXPECT_GT(energy_left(first, g), 0.999 * energy_left(best, g));
}

TEST_F(LeadingDirectionsTest, EitherSideMayBeLeftOut) {
  Matrix p(m, 5), q(n, 5), unused;
  find(g, p, unused);
  find(g, unused, q);
  EXPECT_GT(energy_left(p, g), 0);
  EXPECT_GT(energy_right(q, g), 0);
}

TEST_F(LeadingDirectionsTest, TinyGradientsKeepTheirDirections) {
  Matrix tiny = g, p(m, 4), q(n, 4), tiny_p(m, 4), tiny_q(n, 4);
  for (float& x : tiny.v) x *= 1e-20F;
  find(g, p, q);
  find(tiny, tiny_p, tiny_q);
  EXPECT_NEAR(energy_left(tiny_p, g), energy_left(p, g), 1e-3 * energy_left(p, g));
}

TEST_F(LeadingDirectionsTest, MoreColumnsThanDirectionsAreRefused) {
  Matrix p(m, n + 1), q(n, 4);
  EXPECT_THAT([&] { find(g, p, q); },
              ThrowsMessage<InvalidArgument>(HasSubstr("at most 64 columns")));
}

}  // namespace
}  // namespace sluiceway::test
