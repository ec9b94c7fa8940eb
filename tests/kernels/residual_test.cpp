// The residual kernels against double-precision references, on every backend of this build.
#include "kernels/residual.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/scan_reference.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Means {
  std::vector<double> rows, cols;
};

Means reference_means(const MatrixF64& r) {
  Means means{std::vector<double>(static_cast<std::size_t>(r.rows)),
              std::vector<double>(static_cast<std::size_t>(r.cols))};
  for (std::int64_t i = 0; i < r.rows; ++i) {
    for (std::int64_t j = 0; j < r.cols; ++j) {
      const double square = r(i, j) * r(i, j);
      means.rows[static_cast<std::size_t>(i)] += square / static_cast<double>(r.cols);
      means.cols[static_cast<std::size_t>(j)] += square / static_cast<double>(r.rows);
    }
  }
  return means;
}

// Roots of a matrix of this shape, away from zero, and U of a residual.
struct OwnedRoots {
  std::vector<float> row, col;
  float eps = 1e-3F;

  OwnedRoots(Rng& rng, std::int64_t m, std::int64_t n) : row(rng.vector(m)), col(rng.vector(n)) {
    for (float& x : row) x = std::abs(x) + 0.1F;
    for (float& x : col) x = std::abs(x) + 0.1F;
  }
  FactoredRoots view() const { return {row, col, eps}; }
  MatrixF64 normalized(const MatrixF64& r) const {
    MatrixF64 u = r;
    for (std::int64_t i = 0; i < r.rows; ++i) {
      for (std::int64_t j = 0; j < r.cols; ++j) {
        u(i, j) /= static_cast<double>(row[static_cast<std::size_t>(i)]) *
                       static_cast<double>(col[static_cast<std::size_t>(j)]) +
                   static_cast<double>(eps);
      }
    }
    return u;
  }
};

MatrixF64 updated(const MatrixF64& w, const MatrixF64& u, const WeightUpdate& update) {
  MatrixF64 out = w;
  for (std::size_t i = 0; i < out.v.size(); ++i) {
    out.v[i] =
        static_cast<double>(update.decay) * w.v[i] + static_cast<double>(update.alpha) * u.v[i];
  }
  return out;
}

const std::vector<std::pair<std::int64_t, std::int64_t>> kShapes = {{67, 41}, {5, 307}, {61, 563},
                                                                    {8, 256}, {1, 1},   {523, 3}};

const ResidualVerdict kTrains{.alpha = -1, .trains = true};

double rms_of(const AnyMatrix& r, const FactoredRoots& roots) {
  ResidualVerdict verdict = kTrains;
  on_backend::residual_clip(verdict, r, roots, 1, 1);
  return verdict.rms;
}

class ResidualTest : public BackendTest {
 protected:
  Rng rng{20261121};

  template <typename T>
  void check_moments(std::int64_t m, std::int64_t n) {
    const BasicMatrix<T> r = rounded_to<T>(rng.matrix(m, n));
    PaddedMatrix<T> padded(r);
    GuardedArray<float> rows(static_cast<std::size_t>(m), 1), cols(static_cast<std::size_t>(n), 3);
    on_backend::mean_squares(padded.any(), {{rows.span(), cols.span()}});
    const Means expected = reference_means(as_f64(r));
    const Tolerance tolerance{.eps = 84};  // 1e-5
    EXPECT_TRUE(all_near(rows.span(), expected.rows, tolerance)) << m << "x" << n;
    EXPECT_TRUE(all_near(cols.span(), expected.cols, tolerance)) << m << "x" << n;
    EXPECT_TRUE(rows.guards_intact() && cols.guards_intact());
    EXPECT_EQ(padded.matrix(), r);
  }

  template <typename TW, typename TR>
  void check_updates(std::int64_t m, std::int64_t n) {
    const WeightUpdate update{.decay = 0.75F, .alpha = -0.5F};
    const BasicMatrix<TW> w = rounded_to<TW>(rng.matrix(m, n));
    const BasicMatrix<TR> r = rounded_to<TR>(rng.matrix(m, n));
    const OwnedRoots roots(rng, m, n);
    PaddedMatrix<TW> applied(w), signs(w);
    PaddedMatrix<TR> residual(r);
    const MatrixF64 u = roots.normalized(as_f64(r));
    MatrixF64 sign = u;
    for (double& x : sign.v) x = x > 0 ? 1 : x < 0 ? -1 : 0;
    const Tolerance tolerance{.abs = 1e-6, .eps = std::is_same_v<TW, float> ? 4.0 : 0.51};

    on_backend::residual_apply(applied.any(), {}, residual.any(), roots.view(), update);
    EXPECT_TRUE(all_near(applied.matrix(), updated(as_f64(w), u, update), tolerance));
    on_backend::residual_sign(signs.any(), {}, residual.any(), update);
    EXPECT_TRUE(all_near(signs.matrix(), updated(as_f64(w), sign, update), tolerance));
    EXPECT_TRUE(applied.padding_intact() && signs.padding_intact());
    EXPECT_EQ(residual.matrix(), r);

    double squares = 0;
    for (const double x : u.v) squares += x * x;
    const double rms = std::sqrt(squares / static_cast<double>(m * n));
    EXPECT_NEAR(rms_of(residual.any(), roots.view()), rms, 1e-5 * rms);
  }
};

TEST_P(ResidualTest, MomentsMatchTheReferenceOnOddShapes) {
  for (const auto& [m, n] : kShapes) {
    check_moments<float>(m, n);
    check_moments<bf16>(m, n);
    check_moments<f16>(m, n);
  }
}

TEST_P(ResidualTest, UpdatesMatchTheReferenceOnOddShapes) {
  for (const auto& [m, n] : kShapes) {
    check_updates<float, float>(m, n);
    check_updates<float, bf16>(m, n);
    check_updates<bf16, bf16>(m, n);
    check_updates<bf16, float>(m, n);
  }
}

TEST_P(ResidualTest, MeansOfManyRowsKeepTheirAccuracy) {
  check_moments<float>(20011, 5);
  check_moments<float>(3, 30011);
  check_moments<float>(2, 525011);  // More columns than a device sums up at once.
}

TEST_P(ResidualTest, TheMeansComeWithTheScanOfTheirMatrix) {
  const float infinity = std::numeric_limits<float>::infinity(), scale = 0x1p-20F;
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{0, 7},
                             {1, 1},
                             {67, 41},
                             {5, 2309},
                             {523, 3},
                             {1, 525011}}) {  // A device takes it in pieces.
    for (const float last : {1.0F, 0x1p100F, infinity, std::nanf("")}) {
      SCOPED_TRACE(testing::Message() << m << "x" << n << " that ends in " << last);
      if (n > 500000 && last != infinity) continue;
      Matrix r = rng.matrix(m, n);
      if (m > 0) r(m - 1, n - 1) = last;
      const auto rows = static_cast<std::size_t>(m), cols = static_cast<std::size_t>(n);
      std::vector<float> row(rows), col(cols), plain_row(rows), plain_col(cols);
      ScanResult scan{.sum_squares = -1};
      on_backend::mean_squares(any_matrix(r), {.means = {row, col}, .scan = &scan}, scale);
      expect_same(scan, reference_scan(r.v));
      if (last != 1) continue;
      on_backend::mean_squares(any_matrix(r), {{plain_row, plain_col}}, scale);
      EXPECT_EQ(row, plain_row);
      EXPECT_EQ(col, plain_col);
    }
  }
}

TEST_P(ResidualTest, WhereRowsStartDoesNotShowInTheBits) {
  BasicMatrix<bf16> r = rounded_to<bf16>(rng.matrix(41, 512)), w = r;
  PaddedMatrix<bf16> shifted_r(r), shifted_w(w);
  const OwnedRoots roots(rng, 41, 512);
  std::vector<float> rows(41), cols(512), shifted_rows(41), shifted_cols(512);
  on_backend::mean_squares(any_matrix(r), {{rows, cols}});
  on_backend::mean_squares(shifted_r.any(), {{shifted_rows, shifted_cols}});
  EXPECT_EQ(rows, shifted_rows);
  EXPECT_EQ(cols, shifted_cols);
  EXPECT_EQ(rms_of(any_matrix(r), roots.view()), rms_of(shifted_r.any(), roots.view()));
  on_backend::residual_apply(any_matrix(w), {}, any_matrix(r), roots.view(), {.alpha = -1.0F});
  on_backend::residual_apply(shifted_w.any(), {}, shifted_r.any(), roots.view(), {.alpha = -1.0F});
  EXPECT_EQ(w, shifted_w.matrix());
}

TEST_P(ResidualTest, WhatIsNotFiniteShowsInTheMeansOfItsRowAndColumnAlone) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Matrix r = rng.matrix(19, 293);
    r(17, 260) = bad;
    std::vector<float> rows(19), cols(293);
    on_backend::mean_squares(any_matrix(r), {{rows, cols}});
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(std::isfinite(rows[i]), i != 17);
    for (std::size_t j = 0; j < cols.size(); ++j) EXPECT_EQ(std::isfinite(cols[j]), j != 260);
  }
}

TEST_P(ResidualTest, ZeroResidualAndZeroRootsLeaveTheWeight) {
  Matrix w = rng.matrix(13, 29), r(13, 29);
  const Matrix before = w;
  const std::vector<float> row(13), col(29);
  on_backend::residual_apply(any_matrix(w), {}, any_matrix(r), {row, col, 1e-8F}, {.alpha = -1});
  EXPECT_EQ(w, before);
  on_backend::residual_sign(any_matrix(w), {}, any_matrix(r), {.alpha = -1});
  EXPECT_EQ(w, before);
}

TEST_P(ResidualTest, EmptyMatrixIsAccepted) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{0, 7}, {7, 0}, {0, 0}}) {
    Matrix w(m, n), r(m, n);
    std::vector<float> rows(static_cast<std::size_t>(m)), cols(static_cast<std::size_t>(n));
    on_backend::mean_squares(any_matrix(r), {{rows, cols}});
    EXPECT_EQ(rms_of(any_matrix(r), {rows, cols, 0}), 0);
    on_backend::residual_apply(any_matrix(w), {}, any_matrix(r), {rows, cols, 0}, {});
    on_backend::residual_sign(any_matrix(w), {}, any_matrix(r), {});
  }
}

TEST_P(ResidualTest, LowBitsMakeTheUpdateExact) {
  const Matrix r = rng.matrix(31, 83);
  Matrix residual = r, exact = rng.matrix(31, 83);
  const OwnedRoots roots(rng, 31, 83);
  BasicMatrix<bf16> hi(31, 83);
  BasicMatrix<std::uint16_t> low(31, 83);
  for (std::size_t i = 0; i < exact.v.size(); ++i) {
    hi.v[i] = residual_hi(exact.v[i]);
    low.v[i] = residual_low(exact.v[i]);
  }
  WeightUpdate update{.decay = 0.5F, .alpha = 0.125F};
  on_backend::residual_apply(any_matrix(exact), {}, any_matrix(residual), roots.view(), update);
  update.rounding = Rounding::kResidual;
  on_backend::residual_apply(any_matrix(hi), low.view(), any_matrix(residual), roots.view(),
                             update);
  for (std::size_t i = 0; i < exact.v.size(); ++i) {
    ASSERT_EQ(join_residual(hi.v[i], low.v[i]), exact.v[i]) << i;
  }
}

TEST_P(ResidualTest, MeansAreOfTheScaledMatrix) {
  const Matrix small = rng.matrix(9, 37);
  Matrix large = small;
  const float scale = std::ldexp(1.0F, -80);
  for (float& x : large.v) x *= std::ldexp(1.0F, 80);  // Its squares are infinite.
  Matrix copy = small;
  std::vector<float> rows(9), cols(37), scaled_rows(9), scaled_cols(37);
  on_backend::mean_squares(any_matrix(copy), {{rows, cols}});
  on_backend::mean_squares(any_matrix(large), {{scaled_rows, scaled_cols}}, scale);
  EXPECT_EQ(scaled_rows, rows);
  EXPECT_EQ(scaled_cols, cols);
}

TEST_P(ResidualTest, TheClipDividesByHowFarTheRmsIsAboveItsLimit) {
  Matrix r = rng.matrix(37, 263);
  const OwnedRoots roots(rng, 37, 263);
  const double rms = rms_of(any_matrix(r), roots.view());
  for (const double above : {0.5, 1.0, 3.0}) {
    ResidualVerdict verdict = kTrains;
    on_backend::residual_clip(verdict, any_matrix(r), roots.view(), 0.01, rms / above);
    EXPECT_FLOAT_EQ(verdict.alpha, static_cast<float>(-0.01 / std::max(1.0, above)));
  }
  r(3, 5) = std::numeric_limits<float>::infinity();  // A root of zero divided a residual by eps.
  ResidualVerdict verdict = kTrains;
  on_backend::residual_clip(verdict, any_matrix(r), roots.view(), 0.01, 1);
  EXPECT_EQ(verdict.alpha, 0);
}

TEST_P(ResidualTest, WhatDoesNotTrainLeavesWeightAndVerdict) {
  const ResidualVerdict refused{.steps = 7, .rms = 3, .alpha = -1, .trains = false};
  const OwnedRoots roots(rng, 29, 271);
  Matrix r = rng.matrix(29, 271), w = rng.matrix(29, 271);
  BasicMatrix<bf16> narrow = rounded_to<bf16>(w);
  const Matrix before = w;
  const BasicMatrix<bf16> narrow_before = narrow;
  const WeightUpdate plain{.decay = 0.5F},
      noisy{.decay = 0.5F, .rounding = Rounding::kStochastic, .key = {1, 2, 3, 4}};
  on_backend::residual_apply(any_matrix(w), {}, any_matrix(r), roots.view(), plain, refused);
  on_backend::residual_sign(any_matrix(w), {}, any_matrix(r), plain, refused);
  on_backend::residual_apply(any_matrix(narrow), {}, any_matrix(r), roots.view(), noisy, refused);
  on_backend::residual_sign(any_matrix(narrow), {}, any_matrix(r), noisy, refused);
  EXPECT_EQ(w, before);
  EXPECT_EQ(narrow, narrow_before);
  ResidualVerdict verdict = refused;
  on_backend::residual_clip(verdict, any_matrix(r), roots.view(), 1, 1);
  EXPECT_EQ(verdict.rms, 3);
  EXPECT_EQ(verdict.alpha, -1);
}

TEST_P(ResidualTest, AResidualTrainsThatIsMoreThanItsShareOfTheCore) {
  for (const auto& [m, n] : kShapes) {
    Matrix r = rng.matrix(m, n), core = rng.matrix(13, 331);
    std::vector<float> rows(static_cast<std::size_t>(m)), cols(static_cast<std::size_t>(n));
    const double share = 1e-3;
    const double wanted = reference_scan(r.v).sum_squares / (share * share);
    const double has = reference_scan(core.v).sum_squares;
    for (const auto& [factor, trains] : {std::pair{0.999, true}, {1.001, false}}) {
      Matrix scaled = core;
      for (float& x : scaled.v) x *= static_cast<float>(std::sqrt(factor * wanted / has));
      PaddedMatrix<float> padded(scaled);
      ResidualVerdict verdict{.steps = 5};
      on_backend::mean_squares(any_matrix(r),
                               {{rows, cols}, &verdict, share, 0.01, padded.any().as<float>()});
      EXPECT_EQ(verdict.trains, trains) << m << "x" << n;
      EXPECT_EQ(verdict.alpha, -0.01F);
      EXPECT_EQ(verdict.steps, 5);
    }
  }
}

TEST_P(ResidualTest, AResidualThatIsNotFiniteDoesNotTrain) {
  const auto trains = [](Matrix r) {
    std::vector<float> rows(307), cols(523);
    ResidualVerdict verdict;
    on_backend::mean_squares(any_matrix(r), {{rows, cols}, &verdict, 1e-5, 1});
    return verdict.trains;
  };
  Matrix r = rng.matrix(307, 523);
  EXPECT_TRUE(trains(r));
  EXPECT_TRUE(trains(Matrix(307, 523)));  // Without a core a residual of zeros is all there is.
  r(306, 1) = 0x1p63F;
  EXPECT_TRUE(trains(r));
  // Squares that sum to 2^127 count as infinite, as this one does.
  for (const float bad : {0x1.8p63F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    r(306, 1) = bad;
    EXPECT_FALSE(trains(r)) << bad;
  }
}

TEST_P(ResidualTest, RejectsWrongShapes) {
  Matrix w = rng.matrix(5, 7), r = rng.matrix(5, 8);
  const OwnedRoots roots(rng, 5, 8), turned(rng, 8, 5);
  std::vector<float> rows(5), cols(8);
  EXPECT_THAT(
      [&] {
        on_backend::mean_squares(any_matrix(r), {{cols, rows}});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("rows has 8 elements, expected 5")));
  EXPECT_THAT([&] { rms_of(any_matrix(r), turned.view()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("roots are 8x5, expected 5x8")));
  EXPECT_THAT(
      [&] { on_backend::residual_apply(any_matrix(w), {}, any_matrix(r), roots.view(), {}); },
      ThrowsMessage<InvalidArgument>(HasSubstr("residual_apply: w is 5x7, expected 5x8")));
  EXPECT_THAT([&] { on_backend::residual_sign(any_matrix(w), {}, any_matrix(r), {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("residual_sign: w is 5x7, expected 5x8")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, ResidualTest, testing::ValuesIn(built_backends("residual")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
