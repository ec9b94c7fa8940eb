// Which sparse projectors the library multiplies by, and the state after it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/simt/simt.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr int kNotSupported = 801;  // cudaErrorNotSupported

// Rows for two kernels, with this many columns.
struct Rows {
  OwnedSparseRows p, q;
  Matrix g;

  Rows(Rng& rng, std::int64_t cols)
      : p(random_sparse(rng, 3, 2, 1)), q(random_sparse(rng, cols, 5, 1)), g(rng.matrix(3, cols)) {}

  void compress() {
    Matrix s(2, 5);
    std::vector<float> scratch(
        static_cast<std::size_t>(compress_scratch_elems(p.view(), q.columns())));
    on_backend::compress(s.view(), 0.0F, any_matrix(g), p.view(), q.columns(), scratch);
  }
  void project() {
    Matrix w(3, 5);
    std::vector<float> scratch(static_cast<std::size_t>(project_scratch_elems(q.view())));
    on_backend::project_rows(any_matrix(w), any_matrix(g), q.view(), scratch);
  }
};

class WideProjectorsTest : public BackendTest {
 protected:
  Rng rng{20261126};
};

TEST_P(WideProjectorsTest, RowsThatFitIntoABlockAreOurKernels) {
  Rows rows(rng, 12288);
  const simt::Fault fault("cusparseSpMM", kNotSupported);
  EXPECT_NO_THROW(rows.compress());
  EXPECT_NO_THROW(rows.project());
  EXPECT_EQ(fault.times(), 0);
}

TEST_P(WideProjectorsTest, WiderRowsAreTheLibrarys) {
  Rows rows(rng, 12289);
  {
    const simt::Fault fault("cusparseSpMM", kNotSupported);
    const auto refused =
        ThrowsMessage<CudaError>(HasSubstr("cusparseSpMM: cudaErrorNotSupported (801)"));
    EXPECT_THAT([&] { rows.compress(); }, refused);
    EXPECT_THAT([&] { rows.project(); }, refused);
    EXPECT_EQ(fault.times(), 2);
  }
  EXPECT_NO_THROW(rows.compress());
}

TEST_P(WideProjectorsTest, HandleIsMadeForThoseThatNeedOne) {
  const simt::Fault sparse("cusparseCreate", kNotSupported), dense("cublasCreate", kNotSupported);
  const DeviceId device = DeviceId::cuda(0);
  const auto rows = [](std::int64_t count) { return SparseRows{nullptr, nullptr, count, 5, 1}; };
  const auto group = [](std::int64_t kept) {
    return BlockRows{nullptr, 100, kept, 100, kept, kept};
  };
  EXPECT_NO_THROW(prepare_products(rows(12288), rows(12288), device));
  EXPECT_NO_THROW(prepare_products(group(63), group(64), device));
  EXPECT_NO_THROW(prepare_products(rows(12289), rows(7), DeviceId::host()));
  const auto refused = [](const char* call) { return ThrowsMessage<CudaError>(HasSubstr(call)); };
  EXPECT_THAT([&] { prepare_products(rows(7), rows(12289), device); }, refused("cusparseCreate"));
  EXPECT_THAT([&] { prepare_products(rows(12289), rows(7), device); }, refused("cusparseCreate"));
  EXPECT_THAT([&] { prepare_products(group(64), group(64), device); }, refused("cublasCreate"));
}

INSTANTIATE_TEST_SUITE_P(Simt, WideProjectorsTest,
                         testing::Values(Backend{DeviceId::cuda(0), 0, "cuda"}), backend_name);

}  // namespace
}  // namespace sluiceway::test
