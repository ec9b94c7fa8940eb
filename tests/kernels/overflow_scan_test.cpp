// overflow_scan() and overflow_scan_copy() against plain loops, on every backend of this build.
#include "kernels/overflow_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"
#include "tests/support/rng.h"
#include "tests/support/rounding_edges.h"
#include "tests/support/scan_reference.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLengths[] = {0, 1, 2, 7, 8, 31, 37, 127, 2047, 2048, 2053, 10007};
constexpr std::size_t kOffsets[] = {0, 1, 3, 5};

template <typename T>
void expect_scan_matches(const std::vector<T>& x, std::size_t offset = 0) {
  const GuardedArray<T> in(x, offset);
  expect_same(on_backend::overflow_scan(in.span()), reference_scan(x));
}

class OverflowScanTest : public BackendTest {
 protected:
  template <typename T>
  void check_all_lengths() {
    for (const std::int64_t length : kLengths) {
      for (const std::size_t offset : kOffsets) {
        SCOPED_TRACE(testing::Message() << "length " << length << ", offset " << offset);
        expect_scan_matches(rng.vector<T>(length), offset);
      }
    }
  }

  // A single bad element must be seen wherever it stands, whole vectors and tails alike.
  template <typename T>
  void check_every_position(T bad) {
    constexpr std::size_t kLength = 2048 + 131;
    const std::vector<T> clean = rng.vector<T>(kLength);
    for (std::size_t at = 0; at < kLength; at += step_of_calls(61)) {
      std::vector<T> x = clean;
      x[at] = bad;
      ASSERT_FALSE(on_backend::overflow_scan(std::span<const T>(x)).finite) << "at " << at;
    }
  }

  // Every code of a 16-bit type, alone and among finite neighbours.
  template <typename T>
  void check_every_code() {
    std::vector<T> x(37, from_float<T>(0.5F));
    for (std::uint32_t code = 0; code < 65536; code += step_of_calls(257)) {
      const T value{static_cast<std::uint16_t>(code)};
      x[code % 37] = value;
      const ScanResult scan = on_backend::overflow_scan(std::span<const T>(x));
      const float magnitude = std::abs(to_float(value));
      ASSERT_EQ(scan.finite, std::isfinite(magnitude)) << "code " << code;
      if (scan.finite) {
        ASSERT_EQ(scan.abs_max, std::max(0.5F, magnitude)) << "code " << code;
        const ScanResult alone = on_backend::overflow_scan(std::span<const T>(&value, 1));
        ASSERT_EQ(alone.abs_max, magnitude) << "code " << code;
        const double square = to_f64(magnitude) * to_f64(magnitude);
        ASSERT_NEAR(alone.sum_squares, square, kSumTolerance * square) << "code " << code;
      }
      x[code % 37] = from_float<T>(0.5F);
    }
  }

  Rng rng{20240612};
};

TEST_P(OverflowScanTest, MatchesReferenceForEveryLengthAndStart) {
  check_all_lengths<float>();
  check_all_lengths<f16>();
  check_all_lengths<bf16>();
}

TEST_P(OverflowScanTest, SeesOneInfinityAtEveryPosition) {
  check_every_position(std::numeric_limits<float>::infinity());
  check_every_position(f16{0xFC00});
  check_every_position(bf16{0x7F80});
}

TEST_P(OverflowScanTest, SeesOneSignallingNanAtEveryPosition) {
  check_every_position(std::bit_cast<float>(0x7F800001U));
  check_every_position(f16{0x7C01});
  check_every_position(bf16{0xFF81});
}

TEST_P(OverflowScanTest, AnswersForAll65536Codes) {
  check_every_code<f16>();
  check_every_code<bf16>();
}

TEST_P(OverflowScanTest, AnswersForEdgesOfF32) {
  for (const std::uint32_t magnitude : {0x00000001U, 0x007FFFFFU, 0x00800000U, 0x7F7FFFFFU,
                                        0x7F800000U, 0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      const float edge = std::bit_cast<float>(sign | magnitude);
      SCOPED_TRACE(testing::Message() << "bits " << (sign | magnitude));
      expect_scan_matches(std::vector<float>{edge});
      expect_scan_matches(std::vector<float>(41, edge));
      std::vector<float> mixed = rng.vector(2053);
      mixed[17] = edge;
      expect_scan_matches(mixed);
    }
  }
}

TEST_P(OverflowScanTest, EmptyIsFiniteAndZero) {
  const ScanResult scan = on_backend::overflow_scan(std::span<const float>());
  EXPECT_TRUE(scan.finite);
  EXPECT_EQ(scan.sum_squares, 0.0);
  EXPECT_EQ(scan.abs_max, 0.0F);
}

TEST_P(OverflowScanTest, SumOfSquaresKeepsItsPrecisionOverLongArraysAndAnyMagnitude) {
  const std::int64_t length = (1 << 20) / step_of_calls(11);
  for (const double scale : {1.0, 1e-44, 1e-30, 1e-13, 1e17, 1e25, 1e37}) {
    SCOPED_TRACE(testing::Message() << "scale " << scale);
    expect_scan_matches(rng.vector(length, scale));
  }
  const std::vector<float> tenths(static_cast<std::size_t>(length) + 3, 0.1F);
  expect_scan_matches(tenths);  // Errors that all point one way.
  expect_scan_matches(rng.vector<bf16>(length, 1e30));
  expect_scan_matches(rng.vector<f16>(length, 1e4 / 8));
}

TEST_P(OverflowScanTest, EqualCallsGiveEqualBits) {
  const std::vector<float> x = rng.vector(100003);
  const GuardedArray<float> aligned(x, 0), shifted(x, 5);
  const double first = on_backend::overflow_scan(aligned.span()).sum_squares;
  EXPECT_EQ(first, on_backend::overflow_scan(aligned.span()).sum_squares);
  EXPECT_EQ(first, on_backend::overflow_scan(shifted.span()).sum_squares);
}

TEST_P(OverflowScanTest, MergedPartsEqualTheWhole) {
  std::vector<float> x = rng.vector(10007);
  const auto parts = [&x](std::size_t cut) {
    const std::span<const float> whole(x);
    return merge(on_backend::overflow_scan(whole.first(cut)),
                 on_backend::overflow_scan(whole.subspan(cut)));
  };
  for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{4099}, x.size()}) {
    expect_same(parts(cut), reference_scan(x));
  }
  x[5000] = std::numeric_limits<float>::quiet_NaN();
  expect_same(parts(100), reference_scan(x));
  expect_same(parts(10000), reference_scan(x));
}

class OverflowScanCopyTest : public OverflowScanTest {
 protected:
  template <typename T>
  void check_copy(const std::vector<float>& x, std::size_t offset) {
    const GuardedArray<float> src(x, offset);
    GuardedArray<T> dst(x.size(), offset + 1);
    expect_same(on_backend::overflow_scan_copy(src.span(), dst.span()), reference_scan(x));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T expected = from_float<T>(x[i]);
      ASSERT_EQ(std::memcmp(&dst[i], &expected, sizeof(T)), 0)
          << "element " << i << " of " << x.size() << ", value " << x[i];
    }
    EXPECT_TRUE(dst.guards_intact());
  }

  template <typename T>
  void check_copies() {
    for (const std::int64_t length : kLengths) {
      for (const std::size_t offset : kOffsets) check_copy<T>(rng.vector(length), offset);
    }
    if constexpr (!std::is_same_v<T, float>) check_copy<T>(rounding_edges<T>(), 1);
  }
};

TEST_P(OverflowScanCopyTest, CopiesF32AndScans) { check_copies<float>(); }
TEST_P(OverflowScanCopyTest, RoundsToNearestF16AndScans) { check_copies<f16>(); }
TEST_P(OverflowScanCopyTest, RoundsToNearestBf16AndScans) { check_copies<bf16>(); }

TEST_P(OverflowScanCopyTest, DescribesTheSourceNotTheCopy) {
  const std::vector<float> x(5, 1e6F);  // Beyond f16.
  std::vector<f16> dst(5);
  const ScanResult scan =
      on_backend::overflow_scan_copy(std::span<const float>(x), std::span<f16>(dst));
  EXPECT_TRUE(scan.finite);
  EXPECT_EQ(scan.abs_max, 1e6F);
  EXPECT_EQ(dst[0].bits, 0x7C00);
}

TEST_P(OverflowScanCopyTest, RejectsUnequalLengthsAndWritesNothing) {
  const std::vector<float> x(5, 1.0F);
  std::vector<bf16> dst(4, bf16{0xABCD});
  EXPECT_THAT(
      [&] { on_backend::overflow_scan_copy(std::span<const float>(x), std::span<bf16>(dst)); },
      ThrowsMessage<InvalidArgument>(HasSubstr("dst has 4 elements, expected 5")));
  EXPECT_EQ(dst, std::vector<bf16>(4, bf16{0xABCD}));
}

TEST_P(OverflowScanTest, AMatrixWithPaddingIsScannedWithoutIt) {
  const Matrix x = rng.matrix(7, 83);
  PaddedMatrix<float> padded(x);
  const ScanResult expected = reference_scan(x.v), seen = on_backend::overflow_scan(padded.any());
  EXPECT_TRUE(seen.finite);
  EXPECT_EQ(seen.abs_max, expected.abs_max);
  EXPECT_NEAR(seen.sum_squares, expected.sum_squares, 1e-6 * expected.sum_squares);
  padded.at(6, 82) = std::nanf("");
  EXPECT_FALSE(on_backend::overflow_scan(padded.any()).finite);
}

INSTANTIATE_TEST_SUITE_P(Kernels, OverflowScanTest,
                         testing::ValuesIn(built_backends("overflow_scan")), backend_name);
INSTANTIATE_TEST_SUITE_P(Kernels, OverflowScanCopyTest,
                         testing::ValuesIn(built_backends("overflow_scan")), backend_name);

}  // namespace
}  // namespace sluiceway::test
