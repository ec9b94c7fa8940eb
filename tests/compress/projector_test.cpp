// Storage of projectors: shapes for awkward weights, exact bytes, copies that are restored.
#include "compress/projector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "tests/compress/codec_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

TEST(BlockLayoutTest, FullGroupsKeepARoundedShare) {
  const BlockRows half = block_layout(128, 32, 0.25);
  EXPECT_EQ(half.groups(), 4);
  EXPECT_EQ(half.kept, 8);
  EXPECT_EQ(half.last_kept, 8);
  EXPECT_EQ(half.cols, 32);
}

TEST(BlockLayoutTest, ShortLastGroupKeepsItsOwnShare) {
  const BlockRows half = block_layout(32 * 3 + 7, 32, 0.25);
  EXPECT_EQ(half.groups(), 4);
  EXPECT_EQ(half.kept, 8);
  EXPECT_EQ(half.last_kept, 2);
  EXPECT_EQ(half.cols, 3 * 8 + 2);
}

TEST(BlockLayoutTest, WeightShorterThanABlockIsOneGroup) {
  const BlockRows half = block_layout(5, 32, 0.5);
  EXPECT_EQ(half.groups(), 1);
  EXPECT_EQ(half.block, 5);
  EXPECT_EQ(half.kept, half.last_kept);
  EXPECT_EQ(half.cols, 3);
}

TEST(BlockLayoutTest, AtLeastOneColumnIsKept) {
  EXPECT_EQ(block_layout(1, 32, 0.01).cols, 1);
  EXPECT_EQ(block_layout(33, 32, 0.01).cols, 2);
}

TEST(BlockProjectorTest, ColumnsOfAwkwardShapesAreOrthonormal) {
  Budget budget = Budget::unlimited();
  BlockProjector pair({block_layout(67, 32, 0.25), block_layout(5, 32, 0.25)}, DeviceId::host(),
                      budget);
  pair.draw({1, 0, kWeight});
  for (const MatrixF64& x : {dense(pair.p()), dense(pair.q())}) {
    const MatrixF64 gram = product(transposed(x), x);
    EXPECT_TRUE(all_near(gram, dense_identity(x.cols), {.abs = 1e-6}));
  }
}

TEST(BlockProjectorTest, ReservesExactlyTheBytesItNames) {
  Budget budget = Budget::unlimited();
  {
    const BlockLayouts layouts{block_layout(67, 32, 0.25), block_layout(45, 32, 0.25)};
    const BlockProjector pair(layouts, DeviceId::host(), budget);
    EXPECT_EQ(budget.used(Tier::kDevice), layouts.bytes());
    EXPECT_EQ(budget.used(Tier::kDevice), 4U * 8 * (67 + 45));
  }
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
}

TEST(SparseProjectorTest, ReservesExactlyTheBytesItNames) {
  Budget budget = Budget::unlimited();
  const ProjectorDims dims{.m = 67, .n = 45, .dm = 17, .dn = 3};
  const SparseProjector pair(dims, 4, {1, 0, kWeight}, DeviceId::host(), budget);
  EXPECT_EQ(pair.q().nnz, 3) << "no more nonzeros than columns";
  EXPECT_EQ(budget.used(Tier::kDevice), SparseProjector::bytes(dims, 4));
}

TEST(SparseProjectorTest, ColumnsFollowTheValues) {
  Budget budget = Budget::unlimited();
  SparseProjector pair({.m = 23, .n = 41, .dm = 7, .dn = 11}, 3, {1, 0, kWeight}, DeviceId::host(),
                       budget);
  pair.q_value()[5] = 42.0F;
  pair.values_changed();
  const SparseColumns columns = pair.q_columns();
  MatrixF64 from_columns(41, 11);
  for (std::int64_t c = 0; c < 11; ++c) {
    for (std::int32_t k = columns.offset[c]; k < columns.offset[c + 1]; ++k) {
      from_columns(columns.row[k], c) = static_cast<double>(columns.value[k]);
    }
  }
  EXPECT_EQ(from_columns, dense(pair.q()));
}

TEST(SparseProjectorTest, RefusesBytesBeyondTheBudgetAndGivesBackWhatItTook) {
  Budget budget({1000, 0, 0, 0});
  EXPECT_THROW(SparseProjector({.m = 50, .n = 20, .dm = 13, .dn = 7}, 4, {1, 0, kWeight},
                               DeviceId::host(), budget),
               OutOfMemory);
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
}

TEST(SparseProjectorTest, CopyIsReadAsItWasAndComesBack) {
  Budget budget = Budget::unlimited();
  const ProjectorDims dims{.m = 23, .n = 41, .dm = 7, .dn = 3};
  SparseProjector pair(dims, 4, {1, 0, kWeight}, DeviceId::host(), budget);
  const MatrixF64 p = dense(pair.p()), q = dense(pair.q());
  std::vector<float> copy(SparseProjector::kept_elems(dims, 4));
  pair.keep(copy);
  pair.draw({1, 1, kWeight}, SparseInit::kNormal);
  EXPECT_NE(dense(pair.p()), p);
  const auto [old_p, old_q] = pair.kept(copy);
  EXPECT_EQ(dense(old_p), p);
  EXPECT_EQ(dense(old_q), q);
  pair.restore(copy);
  EXPECT_EQ(dense(pair.p()), p);
  EXPECT_EQ(dense(pair.q()), q);
  EXPECT_EQ(pair.q_columns().offset[dims.dn], 3 * 41);  // The columns are updated too.
}

TEST(BlockProjectorTest, WeightsShareQAndNothingElseWhereTheyAreToldTo) {
  Budget budget = Budget::unlimited();
  const auto drawn = [&](const DrawKey& key) {
    BlockProjector pair({block_layout(45, 32, 0.25), block_layout(45, 32, 0.25)}, DeviceId::host(),
                        budget);
    pair.draw(key);
    return std::pair(dense(pair.p()), dense(pair.q()));
  };
  const auto one = drawn({1, 0, kWeight, 7}), other = drawn({1, 0, kWeight + 1, 7});
  EXPECT_NE(one.first, other.first);
  EXPECT_EQ(one.second, other.second);
  const auto alone = drawn({1, 0, kWeight});
  EXPECT_EQ(one.first, alone.first);
  EXPECT_NE(one.second, alone.second);
}

TEST(SparseProjectorTest, WeightsShareQAndNothingElseWhereTheyAreToldTo) {
  Budget budget = Budget::unlimited();
  const ProjectorDims dims{.m = 41, .n = 41, .dm = 7, .dn = 7};
  const SparseProjector one(dims, 3, {1, 0, kWeight, 7}, DeviceId::host(), budget);
  const SparseProjector other(dims, 3, {1, 0, kWeight + 1, 7}, DeviceId::host(), budget);
  EXPECT_NE(dense(one.p()), dense(other.p()));
  EXPECT_EQ(dense(one.q()), dense(other.q()));
  EXPECT_EQ(one.q_columns().offset[dims.dn], other.q_columns().offset[dims.dn]);
}

TEST(BlockProjectorTest, CopyIsReadAsItWasAndComesBack) {
  Budget budget = Budget::unlimited();
  const BlockLayouts layouts{block_layout(67, 32, 0.25), block_layout(45, 32, 0.25)};
  BlockProjector pair(layouts, DeviceId::host(), budget);
  pair.draw({1, 0, kWeight});
  const MatrixF64 p = dense(pair.p()), q = dense(pair.q());
  std::vector<float> copy(layouts.elems());
  pair.keep(copy);
  pair.draw({1, 1, kWeight});
  EXPECT_NE(dense(pair.p()), p);
  EXPECT_EQ(dense(pair.kept(copy).p), p);
  EXPECT_EQ(dense(pair.kept(copy).q), q);
  pair.restore(copy);
  EXPECT_EQ(dense(pair.p()), p);
  EXPECT_EQ(dense(pair.q()), q);
  pair.restore({});
  EXPECT_EQ(dense(pair.p()), MatrixF64(p.rows, p.cols));
}

TEST(ProjectorDeviceTest, CudaDeviceIsRefusedBeforeAnythingIsReserved) {
  Budget budget = Budget::unlimited();
  EXPECT_THAT(
      [&] {
        SparseProjector({.m = 50, .n = 20, .dm = 13, .dn = 7}, 4, {1, 0, kWeight},
                        DeviceId::cuda(2), budget);
      },
      testing::ThrowsMessage<Unavailable>(testing::HasSubstr("CUDA device 2 was requested")));
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
}

// Random pairs keep P P^T at the identity on average, with the bias of LSP's analysis.
TEST(SparseProjectorTest, RandomPairHasTheExpectedRelativeBias) {
  Budget budget = Budget::unlimited();
  Rng rng(7);
  double sum = 0;
  constexpr int kDraws = 10;
  for (int i = 0; i < kDraws; ++i) {
    const std::int64_t m = 96, n = 64;
    const SparseProjector pair({.m = m, .n = n, .dm = m / 2, .dn = n / 2}, 4,
                               {static_cast<std::uint64_t>(i), 0, kWeight}, DeviceId::host(),
                               budget);
    const BiasNorm bias =
        reference_bias(as_f64(rng.matrix(m, n)), dense(pair.p()), dense(pair.q()));
    sum += bias.bias_sq / bias.grad_sq;
  }
  EXPECT_NEAR(sum / kDraws, 3.0 * 3.0 - 1.0, 0.6);
}

}  // namespace
}  // namespace sluiceway::test
