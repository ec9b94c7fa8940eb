// Which sparse projectors are the library's, and what its refusal leaves.
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

// Rows of two kernels, of so many columns.
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

INSTANTIATE_TEST_SUITE_P(Simt, WideProjectorsTest,
                         testing::Values(Backend{DeviceId::cuda(0), 0, "cuda"}), backend_name);

}  // namespace
}  // namespace sluiceway::test
