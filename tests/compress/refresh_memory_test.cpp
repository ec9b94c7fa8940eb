// A refresh stays within the bytes that plan names: a budget that just fits is always enough.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/compress/codec_fixture.h"
#include "tests/compress/exact_learner.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kM = 64, kN = 48;

class RefreshMemoryTest : public testing::TestWithParam<const char*> {
 protected:
  RefreshOutcome refresh(std::span<float> space) {
    Matrix g = low_rank_gradient(rng, rng.matrix(kM, 3), rng.matrix(kN, 3), 0.1);
    return codec->refresh(any_matrix(g), {}, learner, moments.view(), space, StreamRef::host());
  }

  const CodecConfig config{.name = GetParam(), .block = 16, .seed = 3};
  Rng rng{11};
  ExactLearner learner;
  const std::uint64_t scratch_bytes = sizeof(float) * refresh_scratch_elems(config, kM, kN);
  // The bytes that `plan` adds up, and not one more.
  Budget budget{{projector_bytes(config, kM, kN) + scratch_bytes, 0, 0, 0}};
  std::unique_ptr<GradientCodec> codec =
      make_codec(config, kM, kN, kWeight, DeviceId::host(), budget);
  Buffer scratch{budget, Tier::kDevice, DeviceId::host(), static_cast<std::size_t>(scratch_bytes),
                 "scratch"};
  OwnedMoments moments{codec->core()};
};

TEST_P(RefreshMemoryTest, BudgetThatJustFitsRefreshesAgainAndAgain) {
  ASSERT_EQ(budget.used(Tier::kDevice), budget.limit(Tier::kDevice));
  for (std::uint64_t generation = 1; generation <= 4; ++generation) {
    EXPECT_TRUE(refresh(scratch.as<float>()).refreshed);
    EXPECT_EQ(codec->generation(), generation);
  }
  EXPECT_EQ(budget.used(Tier::kDevice), budget.limit(Tier::kDevice));
}

TEST_P(RefreshMemoryTest, LoadingAStateReservesNothing) {
  refresh(scratch.as<float>());
  const std::vector<std::byte> state = codec->save();
  refresh(scratch.as<float>());
  ASSERT_NE(codec->save(), state);
  codec->load(state);
  EXPECT_EQ(codec->save(), state);
  EXPECT_EQ(codec->generation(), 1U);
}

TEST_P(RefreshMemoryTest, ScratchWithoutRoomForTheOldProjectorsIsRefusedAndNothingChanges) {
  refresh(scratch.as<float>());
  const std::vector<std::byte> before = codec->save();
  const std::span<float> short_of_one = scratch.as<float>().first(scratch.as<float>().size() - 1);
  EXPECT_THAT([&] { refresh(short_of_one); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("scratch has " + std::to_string(short_of_one.size()) + " elements")));
  EXPECT_EQ(codec->save(), before);
}

TEST_P(RefreshMemoryTest, FirstCalibrationNeedsNoRoomForOldOnes) {
  if (!codec->wants_calibration()) {
    EXPECT_EQ(config.name, "sparse_learned");  // It starts with a random pair.
    return;
  }
  EXPECT_TRUE(refresh(scratch.as<float>().first(codec->scratch_elems())).refreshed);
}

INSTANTIATE_TEST_SUITE_P(Families, RefreshMemoryTest,
                         testing::Values("svd", "block_pca", "galore", "topk_columns",
                                         "sparse_learned"));

class ThrowingDirections final : public ProjectorLearner {
 public:
  void leading_directions(const AnyMatrix& /*g*/, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t /*seed*/, StreamRef /*stream*/) override {
    p.data[0] = q.data[0] = 42;
    throw OutOfMemory("svd: no memory");
  }
  LearnOutcome learn(const AnyMatrix& /*g*/, const LearnableRows& /*p*/, const LearnableRows& /*q*/,
                     const LearnOptions& /*options*/, StreamRef /*stream*/) override {
    return {};
  }
};

TEST(RefreshFailureTest, FitThatThrowsBringsTheOldProjectorsAndMomentsBack) {
  Rng rng(12);
  Budget budget = Budget::unlimited();
  const auto codec =
      make_codec({.name = "svd", .ratio = 0.25}, 32, 24, kWeight, DeviceId::host(), budget);
  Matrix g = rng.matrix(32, 24);
  OwnedMoments moments(codec->core());
  std::vector<float> scratch = scratch_of(*codec);
  ThrowingDirections broken;
  const auto refresh = [&](ProjectorLearner& learner) {
    codec->refresh(any_matrix(g), {}, learner, moments.view(), scratch, StreamRef::host());
  };
  const std::vector<std::byte> zeros = codec->save();
  EXPECT_THROW(refresh(broken), OutOfMemory);
  EXPECT_EQ(codec->save(), zeros);
  EXPECT_TRUE(codec->wants_calibration());
  ExactLearner learner;
  refresh(learner);
  moments.m = rng.matrix(moments.m.rows, moments.m.cols);
  const std::vector<std::byte> fitted = codec->save();
  const Matrix m = moments.m;
  EXPECT_THROW(refresh(broken), OutOfMemory);
  EXPECT_EQ(codec->save(), fitted);
  EXPECT_EQ(moments.m, m);
}

}  // namespace
}  // namespace sluiceway::test
