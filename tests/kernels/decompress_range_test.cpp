// decompress_range() against a dense double-precision reference, on every SIMD target.
#include "kernels/decompress_range.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "kernels/gradient_copy.h"
#include "tests/support/backend.h"
#include "tests/support/guarded_array.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/scan_reference.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Bound on the difference of one element before rounding: the terms of both sums times 2^-24 of the
// sum of magnitudes, plus a little for the second order.
struct Bounded {
  MatrixF64 value, error;
};

template <class P, class Q>
Bounded reference(const MatrixF64& d, const P& p, const Q& q, std::int64_t terms) {
  const auto magnitudes = [](MatrixF64 x) {
    for (double& v : x.v) v = std::abs(v);
    return x;
  };
  Bounded out{reference_expanded(d, dense(p), dense(q)),
              reference_expanded(magnitudes(d), magnitudes(dense(p)), magnitudes(dense(q)))};
  for (double& e : out.error.v) e *= static_cast<double>(terms) * 0x1p-24 * (1 + 1e-4);
  return out;
}

std::int64_t terms_of(const SparseRows& p, const SparseRows& q) { return p.nnz + q.nnz; }
std::int64_t terms_of(const BlockRows& p, const BlockRows& q) { return p.kept + q.kept; }

// Half the distance between neighbours of x in T.
template <typename T>
double half_ulp(double x) {
  constexpr int kDigits = std::is_same_v<T, float> ? 24 : std::is_same_v<T, f16> ? 11 : 8;
  constexpr int kSmallest = std::is_same_v<T, f16> ? -14 : -126;
  const int exponent = x == 0 ? kSmallest : std::max(std::ilogb(x), kSmallest);
  return std::ldexp(0.5, exponent - kDigits + 1);
}

// Computes one range with exactly the promised scratch, everything between guards.
template <typename T, class P, class Q>
std::vector<T> range_of(const AnyMatrix& d, const P& p, const Q& q, std::int64_t first,
                        std::int64_t count, ScanResult* scan = nullptr) {
  GuardedArray<float> scratch(static_cast<std::size_t>(decompress_range_scratch_elems(p, q)), 1);
  GuardedArray<T> dst(static_cast<std::size_t>(count), 3);
  const ScanResult seen = cpu::decompress_range(d, p, q, first, std::as_writable_bytes(dst.span()),
                                                dtype_of<T>, scratch.span());
  EXPECT_TRUE(scratch.guards_intact());
  EXPECT_TRUE(dst.guards_intact());
  if (scan != nullptr) *scan = seen;
  return dst.values();
}

template <typename T, typename TD, class P, class Q>
void expect_whole_matches(Rng& rng, const P& p, const Q& q) {
  SCOPED_TRACE(testing::Message() << p.rows << "x" << q.rows << " " << to_string(dtype_of<T>)
                                  << " of " << to_string(dtype_of<TD>));
  const BasicMatrix<TD> d = rounded_to<TD>(rng.matrix(p.cols, q.cols));
  PaddedMatrix<TD> padded(d);
  const Bounded expected = reference(as_f64(d), p, q, terms_of(p, q));
  ScanResult scan;
  const std::vector<T> actual = range_of<T>(padded.any(), p, q, 0, p.rows * q.rows, &scan);
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double value = expected.value.v[i], error = expected.error.v[i];
    ASSERT_NEAR(to_f64(actual[i]), value, error + half_ulp<T>(std::abs(value) + error))
        << "element " << i;
  }
  expect_same(scan, reference_scan(actual));
}

// Divides into ranges of `step` elements: the bits must not depend on it.
template <typename T, class P, class Q>
void expect_equal_bits(const AnyMatrix& d, const P& p, const Q& q) {
  const std::int64_t elems = p.rows * q.rows;
  ScanResult scan;
  const std::vector<T> whole = range_of<T>(d, p, q, 0, elems, &scan);
  for (const std::int64_t step :
       {std::int64_t{1}, std::int64_t{7}, q.rows - 1, q.rows + 1, 5 * q.rows + 3, elems / 2 + 1}) {
    if (step <= 0 || elems / step > 400) continue;
    std::vector<T> parts;
    ScanResult merged;
    for (std::int64_t at = 0; at < elems; at += step) {
      ScanResult part;
      const auto values = range_of<T>(d, p, q, at, std::min(step, elems - at), &part);
      parts.insert(parts.end(), values.begin(), values.end());
      merged = merge(merged, part);
    }
    ASSERT_EQ(std::memcmp(parts.data(), whole.data(), whole.size() * sizeof(T)), 0)
        << p.rows << "x" << q.rows << " in ranges of " << step;
    expect_same(merged, scan);
  }
}

class DecompressRangeTest : public BackendTest {
 protected:
  template <class P, class Q>
  void check(const P& p, const Q& q) {
    expect_whole_matches<float, float>(rng, p, q);
    expect_whole_matches<f16, float>(rng, p, q);
    expect_whole_matches<bf16, float>(rng, p, q);
    expect_whole_matches<bf16, bf16>(rng, p, q);
    Matrix d = rng.matrix(p.cols, q.cols);
    expect_equal_bits<bf16>(any_matrix(d), p, q);
    expect_equal_bits<float>(any_matrix(d), p, q);
  }
  void check_sparse(std::int64_t m, std::int64_t n, std::int64_t dm, std::int64_t dn,
                    std::int64_t nnz) {
    const OwnedSparseRows p = random_sparse(rng, m, dm, nnz), q = random_sparse(rng, n, dn, nnz);
    check(p.view(), q.view());
  }
  void check_blocks(std::int64_t m, std::int64_t n, std::int64_t p_block, std::int64_t p_kept,
                    std::int64_t q_block, std::int64_t q_kept) {
    const OwnedBlockRows p = random_blocks(rng, m, p_block, p_kept);
    const OwnedBlockRows q = random_blocks(rng, n, q_block, q_kept);
    check(p.view(), q.view());
  }

  Rng rng{20240702};
};

TEST_P(DecompressRangeTest, SparseMatchesDenseReferenceAndItsPartsTheWhole) {
  check_sparse(67, 41, 23, 17, 3);
  check_sparse(5, 307, 3, 101, 2);
  check_sparse(48, 64, 16, 32, 4);
  check_sparse(1, 1, 1, 1, 1);
  check_sparse(1, 997, 1, 50, 1);
  check_sparse(13, 29, 0, 0, 0);
}

TEST_P(DecompressRangeTest, BlocksMatchDenseReferenceAndTheirPartsTheWhole) {
  check_blocks(67, 41, 32, 8, 32, 8);
  check_blocks(61, 563, 32, 16, 32, 16);
  check_blocks(53, 47, 7, 3, 5, 2);
  check_blocks(31, 601, 29, 29, 29, 29);
  check_blocks(1, 1, 32, 8, 32, 8);
  check_blocks(1, 997, 32, 8, 256, 64);
}

// One group of more than 256 rows on either side, unit blocks or smaller groups on the other.
TEST_P(DecompressRangeTest, DenseMatchesDenseReferenceAndItsPartsTheWhole) {
  check_blocks(307, 269, 307, 77, 269, 67);
  check_blocks(71, 523, 71, 19, 523, 131);
  check_blocks(307, 41, 307, 151, 32, 32);
  check_blocks(83, 311, 32, 32, 311, 9);
  check_blocks(1, 401, 1, 1, 401, 100);
  check_blocks(401, 1, 401, 3, 1, 1);
  check_blocks(77, 613, 300, 5, 300, 7);
}

TEST_P(DecompressRangeTest, IdentityIsTheGradientCopyOfTheRange) {
  const Matrix d = rng.matrix(37, 53);
  PaddedMatrix<float> padded(d);
  Matrix dense_d = d;
  for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 37 * 53},
                                     {1, 1},
                                     {52, 2},
                                     {100, 777},
                                     {37 * 53, 0}}) {
    GuardedArray<f16> dst(count, 1), contiguous(count, 1), expected(count, 1);
    const auto at = static_cast<std::int64_t>(first);
    const ScanResult scan =
        cpu::decompress_range(padded.any(), at, std::as_writable_bytes(dst.span()), DType::kF16);
    const ScanResult same = cpu::decompress_range(
        any_matrix(dense_d), at, std::as_writable_bytes(contiguous.span()), DType::kF16);
    const ScanResult copied =
        cpu::gradient_copy(std::span<const float>(d.v).subspan(first, count), expected.span());
    EXPECT_EQ(dst.values(), expected.values());
    EXPECT_EQ(contiguous.values(), expected.values());
    EXPECT_EQ(same.sum_squares, copied.sum_squares);
    expect_same(scan, copied);
    EXPECT_TRUE(dst.guards_intact() && contiguous.guards_intact());
  }
}

TEST_P(DecompressRangeTest, EmptyRangeWritesNothing) {
  const OwnedBlockRows p = random_blocks(rng, 40, 32, 8), q = random_blocks(rng, 33, 32, 8);
  Matrix d = rng.matrix(p.view().cols, q.view().cols);
  for (const std::int64_t first : {0, 7, 40 * 33}) {
    ScanResult scan;
    EXPECT_TRUE(range_of<bf16>(any_matrix(d), p.view(), q.view(), first, 0, &scan).empty());
    EXPECT_TRUE(scan.finite);
    EXPECT_EQ(scan.sum_squares, 0.0);
  }
}

TEST_P(DecompressRangeTest, SumOfSquaresKeepsItsPrecisionAtAnyMagnitude) {
  const auto check = [this](const auto& p, const auto& q) {
    for (const double scale : {1e-42, 1e-30, 1e-13, 1e17, 1e25, 1e35}) {
      SCOPED_TRACE(testing::Message() << "scale " << scale);
      Matrix d = rng.matrix(p.cols, q.cols, scale);
      const std::int64_t first = q.rows / 2, count = p.rows * q.rows - q.rows;
      ScanResult exact, narrow;
      const auto x = range_of<float>(any_matrix(d), p, q, first, count, &exact);
      const auto y = range_of<bf16>(any_matrix(d), p, q, first, count, &narrow);
      expect_same(exact, reference_scan(x));
      expect_same(narrow, reference_scan(y));
    }
  };
  check(random_sparse(rng, 67, 17, 3).view(), random_sparse(rng, 541, 29, 3).view());
  check(random_blocks(rng, 67, 32, 8).view(), random_blocks(rng, 541, 32, 8).view());
  check(random_blocks(rng, 67, 67, 9).view(), random_blocks(rng, 541, 541, 8).view());
}

// ---- NaN and infinity --------------------------------------------------------------------------

TEST_P(DecompressRangeTest, NotANumberInTheCoreIsSeenInTheRangesThatItReachesOnly) {
  const OwnedBlockRows p = random_blocks(rng, 40, 32, 8), q = random_blocks(rng, 33, 32, 8);
  Matrix d = rng.matrix(10, 9);
  d(9, 8) = std::numeric_limits<float>::quiet_NaN();  // Affects the last 8 rows of the last column.
  for (std::int64_t first = 0; first < 40 * 33; ++first) {
    ScanResult scan;
    const auto x = range_of<bf16>(any_matrix(d), p.view(), q.view(), first, 1, &scan);
    const bool reached = first / 33 >= 32 && first % 33 == 32;
    ASSERT_EQ(std::isnan(to_float(x[0])), reached) << first;
    ASSERT_EQ(scan.finite, !reached) << first;
  }
}

TEST_P(DecompressRangeTest, InfinityInTheCoreIsSeenWhateverTheProjector) {
  const auto check = [this](const auto& p, const auto& q) {
    Matrix d = rng.matrix(p.cols, q.cols);
    d(p.cols - 1, q.cols - 1) = -std::numeric_limits<float>::infinity();
    ScanResult scan;
    range_of<f16>(any_matrix(d), p, q, 0, p.rows * q.rows, &scan);
    EXPECT_FALSE(scan.finite);
  };
  check(random_sparse(rng, 67, 9, 3).view(), random_sparse(rng, 41, 7, 3).view());
  check(random_blocks(rng, 67, 32, 8).view(), random_blocks(rng, 41, 32, 8).view());
  check(random_blocks(rng, 300, 300, 8).view(), random_blocks(rng, 41, 41, 8).view());
}

TEST_P(DecompressRangeTest, AnElementThatOverflowsOnlyWhenWrittenIsAnOverflow) {
  OwnedSparseRows one = random_sparse(rng, 1, 1, 1);
  one.value = {1.0F};
  for (const float x : {65519.0F, 65520.0F}) {
    Matrix d(1, 1);
    d(0, 0) = x;
    ScanResult narrow, wide;
    range_of<f16>(any_matrix(d), one.view(), one.view(), 0, 1, &narrow);
    range_of<bf16>(any_matrix(d), one.view(), one.view(), 0, 1, &wide);
    EXPECT_EQ(narrow.finite, x < 65520.0F);
    EXPECT_TRUE(wide.finite);
  }
}

// ---- Errors ------------------------------------------------------------------------------------

TEST_P(DecompressRangeTest, RejectsWrongShapesRangesAndScratchAndWritesNothing) {
  const OwnedSparseRows p = random_sparse(rng, 67, 23, 3), q = random_sparse(rng, 41, 17, 3);
  const OwnedBlockRows bp = random_blocks(rng, 67, 32, 8), bq = random_blocks(rng, 41, 32, 8);
  Matrix d = rng.matrix(23, 17), wrong = rng.matrix(24, 17);
  std::vector<float> scratch(1 << 16);
  std::vector<std::byte> dst(20, std::byte{0xAB});
  const auto call = [&](Matrix& core, std::int64_t first, std::size_t bytes, std::size_t elems) {
    cpu::decompress_range(any_matrix(core), p.view(), q.view(), first, std::span(dst).first(bytes),
                          DType::kBF16, std::span(scratch).first(elems));
  };
  const std::size_t all = scratch.size();
  EXPECT_THAT([&] { call(wrong, 0, 20, all); },
              ThrowsMessage<InvalidArgument>(HasSubstr("d is 24x17, expected 23x17")));
  EXPECT_THAT([&] { call(d, -1, 20, all); },
              ThrowsMessage<InvalidArgument>(HasSubstr("elements -1 to 9")));
  EXPECT_THAT([&] { call(d, 67 * 41 - 9, 20, all); },
              ThrowsMessage<InvalidArgument>(
                  HasSubstr("elements 2738 to 2748, expected a part of 0 to 2747 for a 67x41")));
  EXPECT_THAT([&] { call(d, 0, 19, all); },
              ThrowsMessage<InvalidArgument>(HasSubstr("dst has 19 bytes")));
  EXPECT_THAT([&] { call(d, 0, 20, 100); },
              ThrowsMessage<InvalidArgument>(HasSubstr("scratch has 100 elements")));
  EXPECT_THAT(
      [&] {
        cpu::decompress_range(any_matrix(d), bp.view(), bq.view(), 0, dst, DType::kBF16, scratch);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("d is 23x17, expected 17x11")));
  EXPECT_THAT([&] { cpu::decompress_range(any_matrix(d), 23 * 17, dst, DType::kBF16); },
              ThrowsMessage<InvalidArgument>(HasSubstr("for a 23x17 gradient")));
  EXPECT_EQ(dst, std::vector<std::byte>(20, std::byte{0xAB}));
}

INSTANTIATE_TEST_SUITE_P(Kernels, DecompressRangeTest, testing::ValuesIn(host_backends()),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
