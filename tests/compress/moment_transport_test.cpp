// Moments transported between subspaces, against the dense formulas in double.
#include "compress/moment_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <algorithm>
#include <numeric>

#include "tests/compress/codec_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using Dense = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Dense as_eigen(const MatrixF64& x) { return Eigen::Map<const Dense>(x.v.data(), x.rows, x.cols); }

MatrixF64 as_matrix(const Dense& x) {
  MatrixF64 out(x.rows(), x.cols());
  Eigen::Map<Dense>(out.v.data(), x.rows(), x.cols()) = x;
  return out;
}

class MomentTransportTest : public testing::Test {
 protected:
  static constexpr std::int64_t m = 67, n = 41, dm = 23, dn = 11;

  MomentTransportTest() {
    moments.m = rng.matrix(dm, dn);
    moments.v = rng.matrix(dm, dn);
    for (float& x : moments.v.v) x = x * x;
  }
  void transport(MomentTransport how) {
    transport_moments(how, moments.view(), p_old.view(), p_new.view(), q_old.view(), q_new.view());
  }

  Rng rng{77};
  OwnedSparseRows p_old = random_sparse(rng, m, dm, 4), p_new = random_sparse(rng, m, dm, 3);
  OwnedSparseRows q_old = random_sparse(rng, n, dn, 2), q_new = random_sparse(rng, n, dn, 5);
  OwnedMoments moments{CoreShape{dm, dn}};
};

TEST_F(MomentTransportTest, ProjectedMatchesTheDenseFormulas) {
  const Dense a = as_eigen(dense(p_new.view())).transpose() * as_eigen(dense(p_old.view()));
  const Dense b = as_eigen(dense(q_old.view())).transpose() * as_eigen(dense(q_new.view()));
  const Dense expected_m = a * as_eigen(as_f64(moments.m)) * b;
  const Dense expected_v = a.cwiseProduct(a) * as_eigen(as_f64(moments.v)) * b.cwiseProduct(b);
  transport(MomentTransport::kProjected);
  const double m_size = expected_m.cwiseAbs().maxCoeff();
  const double v_size = expected_v.cwiseAbs().maxCoeff();
  EXPECT_TRUE(all_near(moments.m, as_matrix(expected_m), {.abs = 1e-6 * m_size}));
  EXPECT_TRUE(all_near(moments.v, as_matrix(expected_v), {.abs = 1e-6 * v_size}));
}

TEST_F(MomentTransportTest, FactoredSecondMomentGoesWhereTheWholeOneWould) {
  std::vector<float> both(rng.vector(dm + dn));
  for (float& x : both) x = x * x;
  const FactoredMoment factored = FactoredMoment::of(both, dm);
  const auto whole = [&] {
    MatrixF64 v(dm, dn);
    const double sum = std::accumulate(factored.row.begin(), factored.row.end(), 0.0);
    const double mean = sum / static_cast<double>(dm);
    for (std::int64_t i = 0; i < dm; ++i) {
      for (std::int64_t j = 0; j < dn; ++j) {
        v(i, j) = to_f64(factored.row[static_cast<std::size_t>(i)]) *
                  to_f64(factored.col[static_cast<std::size_t>(j)]) / mean;
      }
    }
    return v;
  };
  const Dense a = as_eigen(dense(p_new.view())).transpose() * as_eigen(dense(p_old.view()));
  const Dense b = as_eigen(dense(q_old.view())).transpose() * as_eigen(dense(q_new.view()));
  const Dense expected = a.cwiseProduct(a) * as_eigen(whole()) * b.cwiseProduct(b);
  transport_moments(MomentTransport::kProjected, {moments.m.view(), {}, factored}, p_old.view(),
                    p_new.view(), q_old.view(), q_new.view());
  EXPECT_TRUE(
      all_near(whole(), as_matrix(expected), {.abs = 2e-6 * expected.cwiseAbs().maxCoeff()}));
  for (std::int64_t i = 0; i < dm; ++i) {  // The factors are the means of rows.
    EXPECT_NEAR(factored.row[static_cast<std::size_t>(i)], expected.row(i).mean(),
                1e-5 * expected.maxCoeff());
  }
}

TEST_F(MomentTransportTest, FactoredSecondMomentOfNoStepStaysZero) {
  std::vector<float> both(static_cast<std::size_t>(dm + dn), 0.0F);
  transport_moments(MomentTransport::kProjected,
                    {moments.m.view(), {}, FactoredMoment::of(both, dm)}, p_old.view(),
                    p_new.view(), q_old.view(), q_new.view());
  EXPECT_EQ(both, std::vector<float>(both.size(), 0.0F));
}

TEST_F(MomentTransportTest, FactoredSecondMomentOfAnotherShapeIsRefused) {
  std::vector<float> both(static_cast<std::size_t>(dm + dn), 1.0F);
  const OwnedMoments before = moments;
  EXPECT_THAT(
      [&] {
        transport_moments(MomentTransport::kProjected,
                          {moments.m.view(), {}, FactoredMoment::of(both, dm - 1)}, p_old.view(),
                          p_new.view(), q_old.view(), q_new.view());
      },
      testing::ThrowsMessage<InvalidArgument>(
          testing::HasSubstr("factored v is 22x12, expected 23x11")));
  EXPECT_EQ(moments.m, before.m);
}

TEST_F(MomentTransportTest, SecondMomentStaysNonnegative) {
  transport(MomentTransport::kProjected);
  EXPECT_GE(*std::min_element(moments.v.v.begin(), moments.v.v.end()), 0.0F);
}

TEST_F(MomentTransportTest, StridedMomentsLeaveTheirPaddingAlone) {
  PaddedMatrix<float> padded_m(moments.m), padded_v(moments.v);
  transport_moments(MomentTransport::kProjected, {padded_m.view(), padded_v.view(), {}},
                    p_old.view(), p_new.view(), q_old.view(), q_new.view());
  transport(MomentTransport::kProjected);
  EXPECT_EQ(padded_m.matrix(), moments.m);
  EXPECT_EQ(padded_v.matrix(), moments.v);
  EXPECT_TRUE(padded_m.padding_intact());
  EXPECT_TRUE(padded_v.padding_intact());
}

TEST_F(MomentTransportTest, KeepChangesNothing) {
  const OwnedMoments before = moments;
  transport(MomentTransport::kKeep);
  EXPECT_EQ(moments.m, before.m);
  EXPECT_EQ(moments.v, before.v);
}

TEST_F(MomentTransportTest, ResetZeroesBoth) {
  transport(MomentTransport::kReset);
  EXPECT_EQ(moments.m, Matrix(dm, dn));
  EXPECT_EQ(moments.v, Matrix(dm, dn));
}

TEST_F(MomentTransportTest, WrongShapesAreNamedAndNothingChanges) {
  const OwnedMoments before = moments;
  moments.v = Matrix(dm, dn + 1);
  EXPECT_THAT(
      [&] { transport(MomentTransport::kProjected); },
      testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("v is 23x12, expected 23x11")));
  EXPECT_EQ(moments.m, before.m);
  p_new = random_sparse(rng, m, dm + 1, 3);
  EXPECT_THAT([&] { transport(MomentTransport::kProjected); },
              testing::ThrowsMessage<InvalidArgument>(
                  testing::HasSubstr("new P is 67x24, expected 67x23")));
}

}  // namespace
}  // namespace sluiceway::test
