// gemm() on CUDA device 0 against plain loops. A machine without one fails here.
#include "kernels/cuda/dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/backend.h"
#include "tests/support/device_array.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using cuda::Factor;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kM = 67, kN = 41, kK = 23;  // Primes.
constexpr std::int64_t kGap = 5;                   // Between rows.

struct Case {
  bool a_transposed, b_transposed;
  float alpha, beta;
};

class DenseTest : public testing::TestWithParam<Case> {
 protected:
  static std::int64_t elems(std::int64_t rows, std::int64_t cols) { return rows * (cols + kGap); }
  static Factor factor(const DeviceArray<float>& x, std::int64_t rows, std::int64_t cols,
                       bool transposed) {
    if (transposed) std::swap(rows, cols);
    return {MatrixView<const float>(x.data(), rows, cols, cols + kGap), transposed};
  }
  static double at(const std::vector<float>& x, std::int64_t rows, std::int64_t cols,
                   bool transposed, std::int64_t i, std::int64_t j) {
    const std::int64_t index = transposed ? j * (rows + kGap) + i : i * (cols + kGap) + j;
    return x[static_cast<std::size_t>(index)];
  }

  Rng rng{20261123};
};

TEST_P(DenseTest, MatchesPlainLoops) {
  const auto [a_transposed, b_transposed, alpha, beta] = GetParam();
  const std::vector<float> a = rng.vector(elems(kM + kGap, kK + kGap));  // Room for both forms.
  const std::vector<float> b = rng.vector(elems(kK + kGap, kN + kGap));
  std::vector<float> c = rng.vector(elems(kM, kN));
  if (beta == 0.0F) c.assign(c.size(), std::numeric_limits<float>::quiet_NaN());
  const DeviceArray<float> a_there(a), b_there(b), c_there(c);
  run_on_stream(DeviceId::cuda(0), [&](StreamRef stream) {
    cuda::gemm(alpha, factor(a_there, kM, kK, a_transposed), factor(b_there, kK, kN, b_transposed),
               beta, MatrixView<float>(c_there.data(), kM, kN, kN + kGap), stream);
  });
  const std::vector<float> found = c_there.values();
  for (std::int64_t i = 0; i < kM; ++i) {
    for (std::int64_t j = 0; j < kN + kGap; ++j) {
      const auto at_c = static_cast<std::size_t>(i * (kN + kGap) + j);
      double expected = c[at_c];
      double scale = 0.0;
      if (j < kN) {
        double sum = 0.0;
        for (std::int64_t k = 0; k < kK; ++k) {
          const double term = at(a, kM, kK, a_transposed, i, k) * at(b, kK, kN, b_transposed, k, j);
          sum += term, scale += std::abs(term);
        }
        expected = alpha * sum + (beta == 0.0F ? 0.0 : beta * expected);
      }
      if (j >= kN && beta == 0.0F) {
        EXPECT_TRUE(std::isnan(found[at_c])) << "row " << i << " beyond its end";
      } else {
        EXPECT_NEAR(found[at_c], expected, 1e-7 + 4 * 0x1p-23 * (std::abs(alpha) * scale + 1));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DenseTest,
                         testing::Values(Case{false, false, 1, 0}, Case{true, false, 1, 1},
                                         Case{false, true, -0.5F, 0}, Case{true, true, 2, 0.25F}),
                         [](const auto& test) {
                           return std::string(test.param.a_transposed ? "a_transposed_" : "a_") +
                                  (test.param.b_transposed ? "b_transposed" : "b");
                         });

TEST(DenseArgumentsTest, OtherShapesAreRefused) {
  const Factor a{MatrixView<const float>(nullptr, 3, 4)};
  const Factor b{MatrixView<const float>(nullptr, 5, 6)};
  const Factor fits{MatrixView<const float>(nullptr, 6, 4), true};
  const StreamRef stream = StreamRef::cuda(0, nullptr);
  EXPECT_THAT([&] { cuda::gemm(1, a, b, 0, MatrixView<float>(nullptr, 3, 6), stream); },
              ThrowsMessage<InvalidArgument>(HasSubstr("op(a) is 3x4, op(b) is 5x6")));
  EXPECT_THAT([&] { cuda::gemm(1, a, fits, 0, MatrixView<float>(nullptr, 3, 7), stream); },
              ThrowsMessage<InvalidArgument>(HasSubstr("c is 3x7, expected 3x6")));
}

}  // namespace
}  // namespace sluiceway::test
