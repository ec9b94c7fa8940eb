// factored_adam_direction() against double precision, on every backend of this build.
#include "kernels/factored_adam.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/error.h"
#include "tests/support/adam_fixture.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Roots {
  std::vector<float> row, col;

  Roots(Rng& rng, std::int64_t m, std::int64_t n) : row(rng.vector(m)), col(rng.vector(n)) {
    for (float& x : row) x = std::abs(x) + 0.1F;
    for (float& x : col) x = 1e-2F * (std::abs(x) + 0.1F);
  }
  FactoredRoots view() const { return {row, col, 1e-4F}; }
};

class FactoredAdamTest : public BackendTest {
 protected:
  Rng rng{20261122};

  // Every matrix has a stride and a misaligned start of its own.
  template <typename T>
  void check(std::int64_t m, std::int64_t n) {
    SCOPED_TRACE(testing::Message() << m << "x" << n);
    const BasicMatrix<T> g = rounded_to<T>(rng.matrix(m, n));
    const Matrix old = rng.matrix(m, n);
    const Roots roots(rng, m, n);
    const AdamHyper h = adam_hyper();
    PaddedMatrix<T> gradient(g), d(BasicMatrix<T>(m, n));
    PaddedMatrix<float> m_in(old), m_out(Matrix(m, n));
    on_backend::factored_adam_direction<T>(gradient.view(), kGradScale, m_in.view(), m_out.view(),
                                           roots.view(), h, d.view());
    MatrixF64 first(m, n), direction(m, n);
    double squares = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double x = static_cast<double>(kGradScale) * to_f64(g(i, j));
        first(i, j) = to_f64(old(i, j)) + (1 - h.beta1) * (x - to_f64(old(i, j)));
        const double root = to_f64(roots.row[static_cast<std::size_t>(i)]) *
                            to_f64(roots.col[static_cast<std::size_t>(j)]);
        const double corrected = first(i, j) / (1 - std::pow(h.beta1, static_cast<double>(h.step)));
        direction(i, j) = corrected / (root + to_f64(roots.view().eps));
        squares += direction(i, j) * direction(i, j);
      }
    }
    const double rms = m * n > 0 ? std::sqrt(squares / static_cast<double>(m * n)) : 0;
    for (double& x : direction.v) x /= std::max(1.0, rms);
    EXPECT_TRUE(all_near(m_out.matrix(), first, {.abs = 1e-9, .eps = 2}));
    EXPECT_TRUE(all_near(d.matrix(), direction, {.abs = 1e-6, .eps = sizeof(T) == 4 ? 8.0 : 0.51}));
    EXPECT_EQ(gradient.matrix(), g);
    EXPECT_EQ(m_in.matrix(), old);
    EXPECT_TRUE(m_out.padding_intact() && d.padding_intact());
  }
};

TEST_P(FactoredAdamTest, MatchesDoublePrecisionOnOddShapes) {
  for (const auto& [m, n] : {std::pair<std::int64_t, std::int64_t>{67, 41},
                             {5, 307},
                             {1, 1},
                             {523, 3},
                             {8, 256},
                             {0, 7},
                             {7, 0}}) {
    check<float>(m, n);
    check<bf16>(m, n);
  }
}

// The first core of a projector that is fitted to its gradient: moments that are means of rows and
// columns divide its smallest element by the square of it.
TEST_P(FactoredAdamTest, DirectionOfADiagonalCoreIsOneStepLong) {
  const std::int64_t n = 43;
  Matrix g(n, n);
  std::vector<float> root(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    g(i, i) = std::exp2(static_cast<float>(-i) / 2);
    root[static_cast<std::size_t>(i)] = g(i, i);
  }
  const FactoredRoots roots{root, root, 0};
  const Matrix zero(n, n);
  PaddedMatrix<float> gradient(g), m_in(zero), m_out(zero), d(zero);
  AdamHyper first = adam_hyper();
  first.step = 1;
  on_backend::factored_adam_direction<float>(gradient.view(), 1.0F, m_in.view(), m_out.view(),
                                             roots, first, d.view());
  double moved = 0;
  for (const float x : d.matrix().v) moved += to_f64(x) * to_f64(x);
  EXPECT_NEAR(std::sqrt(moved / static_cast<double>(n * n)), 1, 1e-5);
  EXPECT_GT(d.matrix()(n - 1, n - 1), d.matrix()(0, 0));
}

TEST_P(FactoredAdamTest, FirstMomentHasTheBitsOfAdamDirection) {
  const std::int64_t m = 7, n = 13;
  const AdamChunk<float> chunk(rng, m * n);
  std::vector<float> whole_m(chunk.m), v(chunk.v), d(chunk.g.size()), factored_m(chunk.m);
  on_backend::adam_direction(std::span<const float>(chunk.g), kGradScale,
                             AdamMoments::in_place(whole_m, v), adam_hyper(), std::span<float>(d));
  const Roots roots(rng, m, n);
  const MatrixView<float> first(factored_m.data(), m, n);  // In place.
  on_backend::factored_adam_direction<float>({chunk.g.data(), m, n}, kGradScale, first, first,
                                             roots.view(), adam_hyper(), {d.data(), m, n});
  EXPECT_EQ(factored_m, whole_m);
}

TEST_P(FactoredAdamTest, RejectsWrongShapesAndSteps) {
  std::vector<float> a(35), b(40);
  const MatrixView<float> five_by_seven(a.data(), 5, 7), five_by_eight(b.data(), 5, 8);
  const Roots roots(rng, 5, 7), turned(rng, 7, 5);
  const auto direction = [&](MatrixView<float> m, const Roots& r, std::int64_t step) {
    AdamHyper h = adam_hyper();
    h.step = step;
    on_backend::factored_adam_direction<float>(five_by_seven, 1.0F, m, m, r.view(), h,
                                               five_by_seven);
  };
  EXPECT_THAT(
      [&] { direction(five_by_eight, roots, 1); },
      ThrowsMessage<InvalidArgument>(HasSubstr("m_in is 5x8, expected 5x7, the shape of g")));
  EXPECT_THAT([&] { direction(five_by_seven, turned, 1); },
              ThrowsMessage<InvalidArgument>(HasSubstr("roots are 7x5, expected 5x7")));
  EXPECT_THAT([&] { direction(five_by_seven, roots, 0); },
              ThrowsMessage<InvalidArgument>(HasSubstr("step is 0, expected 1 or more")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, FactoredAdamTest,
                         testing::ValuesIn(built_backends("factored_adam")), backend_name);

}  // namespace
}  // namespace sluiceway::test
