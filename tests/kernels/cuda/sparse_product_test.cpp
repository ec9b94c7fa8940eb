// sparse_product() on CUDA device 0 against plain loops. A machine without one fails here.
#include "kernels/cuda/sparse_product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "tests/support/backend.h"
#include "tests/support/device_array.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

using cuda::SparseForm;
using cuda::SumOrder;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kN = 41;

struct Case {
  SparseForm form;
  SumOrder order;
  float alpha, beta;
};

std::vector<std::int32_t> row_offsets(const OwnedSparseRows& p) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i <= p.rows; ++i) out.push_back(static_cast<std::int32_t>(i * p.nnz));
  return out;
}

class SparseProductDenseTest : public testing::TestWithParam<Case> {};

TEST_P(SparseProductDenseTest, MatchesPlainLoops) {
  const auto [form, order, alpha, beta] = GetParam();
  Rng rng(20261123);
  const OwnedSparseRows p = random_sparse(rng, 67, 23, 3);
  const bool plain = form == SparseForm::kPlain;
  const Matrix b = plain ? rng.matrix(23, kN) : rng.matrix(kN, 23);
  Matrix c = plain ? rng.matrix(67, kN) : rng.matrix(kN, 67);
  MatrixF64 expected =
      plain ? product(dense(p.view()), as_f64(b)) : product(as_f64(b), transposed(dense(p.view())));
  for (std::size_t i = 0; i < c.v.size(); ++i) {
    expected.v[i] = alpha * expected.v[i] + (beta == 0.0F ? 0.0 : beta * c.v[i]);
    if (beta == 0.0F) c.v[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const DeviceArray<std::int32_t> offset(row_offsets(p)), column(p.index);
  const DeviceArray<float> value(p.value), b_there(b.v), c_there(c.v);
  const cuda::SparseMatrix a{offset.data(), column.data(), value.data(), 67, 23, 67 * 3};
  Stream stream = Stream::owned(DeviceId::cuda(0), {"sw-test"});
  stream.enqueue([&, form = form, order = order, alpha = alpha, beta = beta](StreamRef on) {
    cuda::sparse_product(alpha, a, form, MatrixView<const float>(b_there.data(), b.rows, b.cols),
                         beta, MatrixView<float>(c_there.data(), c.rows, c.cols), order, on);
  });
  stream.synchronize();
  c.v = c_there.values();
  EXPECT_TRUE(all_near(c, expected, {.abs = 1e-5, .eps = 4}));
}

INSTANTIATE_TEST_SUITE_P(
    Kernels, SparseProductDenseTest,
    testing::Values(Case{SparseForm::kPlain, SumOrder::kFastest, 1, 0},
                    Case{SparseForm::kPlain, SumOrder::kFastest, -0.5F, 1},
                    Case{SparseForm::kPlain, SumOrder::kFixed, -0.5F, 1},
                    Case{SparseForm::kTransposed, SumOrder::kFastest, 1, 0},
                    Case{SparseForm::kTransposed, SumOrder::kFastest, 2, 0.25F},
                    Case{SparseForm::kTransposed, SumOrder::kFixed, 1, 0},
                    Case{SparseForm::kTransposed, SumOrder::kFixed, 2, 0.25F}),
    [](const auto& test) {
      return std::string(test.param.form == SparseForm::kPlain ? "plain" : "transposed") +
             (test.param.order == SumOrder::kFixed ? "_fixed_" : "_fastest_") +
             std::to_string(test.index);
    });

TEST(SparseProductDenseArgumentsTest, OtherShapesAreRefused) {
  const cuda::SparseMatrix a{nullptr, nullptr, nullptr, 3, 4, 0};
  const StreamRef stream = StreamRef::cuda(0, nullptr);
  EXPECT_THAT(
      [&] {
        cuda::sparse_product(1, a, SparseForm::kPlain, MatrixView<const float>(nullptr, 5, 6), 0,
                             MatrixView<float>(nullptr, 3, 6), SumOrder::kFixed, stream);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("a is 3x4, b is 5x6, c is 3x6")));
}

}  // namespace
}  // namespace sluiceway::test
