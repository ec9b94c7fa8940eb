// How closely the backends of decompress() agree when weights are rounded at random. The share of
// elements that differ goes into the results of the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"

namespace sluiceway::test {
namespace {

class DecompressAgreementTest : public BackendTest {
 protected:
  template <class P, class Q>
  BasicMatrix<bf16> updated_on(const Backend& backend, BasicMatrix<bf16> w, Matrix d, const P& p,
                               const Q& q) {
    select(backend);
    const WeightUpdate update{.decay = 0.99F,
                              .alpha = -1.0F,
                              .rounding = Rounding::kStochastic,
                              .key = {.seed = 5, .step = 7},
                              .row_offset = 11};
    std::vector<float> scratch(static_cast<std::size_t>(decompress_scratch_elems(p, q)));
    on_backend::decompress(any_matrix(w), {}, any_matrix(d), p, q, update, scratch);
    return w;
  }

  template <class Owned>
  void compare(const Owned& p, const Owned& q) {
    const std::int64_t m = p.view().rows, n = q.view().rows;
    const BasicMatrix<bf16> before = rounded_to<bf16>(rng.matrix(m, n));
    const Matrix d = rng.matrix(p.view().cols, q.view().cols);
    const auto expected = updated_on(host_backends().front(), before, d, p.view(), q.view());
    const auto found = updated_on(GetParam(), before, d, p.view(), q.view());
    EXPECT_NE(found, before);
    for (std::size_t i = 0; i < found.v.size(); ++i) {
      const double w = to_f64(before.v[i]), e = to_f64(expected.v[i]), f = to_f64(found.v[i]);
      EXPECT_LE(std::abs(e - f), 0x1p-7 * std::max(std::abs(w), std::abs(e)))
          << "element " << i << " of " << m << "x" << n;
      differing += e == f ? 0 : 1;
    }
    elems += found.v.size();
  }

  Rng rng{20261123};
  std::size_t elems = 0, differing = 0;
};

// Sums in another order may fall on the other side of a threshold; then weights differ by an ulp,
// but seldom. Compares each backend, devices included, with this processor's default one.
TEST_P(DecompressAgreementTest, WeightsDifferFromTheHostsByAnUlpAtMostAndSeldom) {
  compare(random_sparse(rng, 67, 23, 3), random_sparse(rng, 293, 77, 3));
  compare(random_sparse(rng, 96, 16, 4), random_sparse(rng, 256, 32, 4));
  compare(random_blocks(rng, 96, 32, 8), random_blocks(rng, 293, 32, 8));
  compare(random_blocks(rng, 61, 32, 16), random_blocks(rng, 563, 32, 16));
  compare(random_blocks(rng, 131, 131, 67), random_blocks(rng, 127, 127, 71));  // A library's sums.
  const double share = static_cast<double>(differing) / static_cast<double>(elems);
  RecordProperty("differing", std::to_string(share));
  EXPECT_LE(share, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecompressAgreementTest,
                         testing::ValuesIn(built_backends("decompress")), backend_name);

}  // namespace
}  // namespace sluiceway::test
