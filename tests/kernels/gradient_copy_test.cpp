// gradient_copy() against from_float() and plain loops over what was written, on every backend.
#include "kernels/gradient_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/rng.h"
#include "tests/support/rounding_edges.h"
#include "tests/support/scan_reference.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLengths[] = {0,    1,    2,    7,    8,    31,   37,    127,
                                     2047, 2048, 2053, 4095, 4096, 4097, 10007, 16411};
constexpr std::size_t kOffsets[] = {0, 1, 5};

// The expected output: every bit if the types are equal, the nearest value in a narrower type.
template <typename Dst, typename Src>
Dst written(Src x) {
  if constexpr (std::is_same_v<Src, Dst>) {
    return x;
  } else {
    return from_float<Dst>(x);
  }
}

bool same_bits(const ScanResult& a, const ScanResult& b) {
  return a.finite == b.finite &&
         std::memcmp(&a.sum_squares, &b.sum_squares, sizeof a.sum_squares) == 0 &&
         std::memcmp(&a.abs_max, &b.abs_max, sizeof a.abs_max) == 0;
}

template <typename Src, typename Dst>
void check_copy(const std::vector<Src>& x, std::size_t offset = 0) {
  SCOPED_TRACE(testing::Message() << x.size() << " elements, " << to_string(dtype_of<Src>) << " to "
                                  << to_string(dtype_of<Dst>));
  const GuardedArray<Src> src(x, offset);
  GuardedArray<Dst> dst(x.size(), offset + 1), again(x.size(), 0);
  const ScanResult scan = on_backend::gradient_copy(src.span(), dst.span());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Dst expected = written<Dst>(x[i]);
    ASSERT_EQ(std::memcmp(&dst[i], &expected, sizeof expected), 0) << "element " << i;
  }
  EXPECT_TRUE(dst.guards_intact());
  expect_same(scan, reference_scan(dst.values()));
  const ScanResult erased =
      on_backend::gradient_copy(std::as_bytes(src.span()), dtype_of<Src>,
                                std::as_writable_bytes(again.span()), dtype_of<Dst>);
  EXPECT_TRUE(same_bits(scan, erased));
  if (!x.empty()) {
    EXPECT_EQ(std::memcmp(dst.data(), again.data(), x.size() * sizeof(Dst)), 0);
  }
  EXPECT_TRUE(again.guards_intact());
}

class GradientCopyTest : public BackendTest {
 protected:
  template <typename Src, typename Dst>
  void check_lengths() {
    for (const std::int64_t length : kLengths) {
      for (const std::size_t offset : kOffsets) {
        check_copy<Src, Dst>(rng.vector<Src>(length), offset);
      }
    }
  }

  // Copies a code alone and among finite neighbours, from every source type.
  template <typename Src, typename Dst>
  void check_finite(Src value) {
    const Dst expected = written<Dst>(value);
    const bool finite = std::isfinite(to_float(expected));
    Dst alone{};
    ASSERT_EQ(on_backend::gradient_copy(std::span<const Src>(&value, 1), std::span<Dst>(&alone, 1))
                  .finite,
              finite);
    ASSERT_EQ(std::memcmp(&alone, &expected, sizeof expected), 0);
    std::vector<Src> among(37, from_float<Src>(0.5F));
    among[neighbours_++ % among.size()] = value;
    std::vector<Dst> out(among.size());
    const ScanResult scan =
        on_backend::gradient_copy(std::span<const Src>(among), std::span<Dst>(out));
    ASSERT_EQ(scan.finite, finite);
    if (finite) {
      ASSERT_EQ(scan.abs_max, std::max(0.5F, std::abs(to_float(expected))));
    }
  }

  template <typename T>
  void check_every_code() {
    for (std::uint32_t code = 0; code < 65536; code += step_of_calls(257)) {
      SCOPED_TRACE(testing::Message() << to_string(dtype_of<T>) << " code " << code);
      check_finite<T, T>(T{static_cast<std::uint16_t>(code)});
      if (HasFatalFailure()) return;
    }
  }

  Rng rng{20240701};

 private:
  std::size_t neighbours_ = 0;
};

TEST_P(GradientCopyTest, WritesNearestAndDescribesItForEveryLengthAndStart) {
  check_lengths<float, float>();
  check_lengths<float, f16>();
  check_lengths<float, bf16>();
  check_lengths<f16, f16>();
  check_lengths<bf16, bf16>();
}

TEST_P(GradientCopyTest, RoundsToNearestEvenAtEveryEdge) {
  check_copy<float, f16>(rounding_edges<f16>(), 1);
  check_copy<float, bf16>(rounding_edges<bf16>(), 1);
}

TEST_P(GradientCopyTest, IsFiniteExactlyWhereTheWrittenCodeIsForAll65536Codes) {
  check_every_code<f16>();
  check_every_code<bf16>();
}

// Values around which a copy of f32 becomes infinite, and special values.
TEST_P(GradientCopyTest, IsFiniteExactlyWhereTheRoundedValueIs) {
  for (const std::uint32_t magnitude :
       {0x00000000U, 0x00000001U, 0x007FFFFFU, 0x00800000U, 0x477FE000U, 0x477FEFFFU, 0x477FF000U,
        0x47800000U, 0x7F7F0000U, 0x7F7F7FFFU, 0x7F7F8000U, 0x7F7FFFFFU, 0x7F800000U, 0x7F800001U,
        0x7FBFFFFFU, 0x7FC00000U, 0x7FFFFFFFU}) {
    for (const std::uint32_t sign : {0U, 0x80000000U}) {
      SCOPED_TRACE(testing::Message() << "bits " << (sign | magnitude));
      const float edge = std::bit_cast<float>(sign | magnitude);
      check_finite<float, float>(edge);
      check_finite<float, f16>(edge);
      check_finite<float, bf16>(edge);
    }
  }
}

TEST_P(GradientCopyTest, AValueThatOverflowsOnlyInItsCopyIsAnOverflow) {
  const std::vector<float> x(5, 1e6F);  // Beyond f16.
  std::vector<f16> narrow(5);
  std::vector<bf16> wide(5);
  const std::span<const float> src(x);
  EXPECT_FALSE(on_backend::gradient_copy(src, std::span<f16>(narrow)).finite);
  EXPECT_TRUE(on_backend::gradient_copy(src, std::span<bf16>(wide)).finite);
}

TEST_P(GradientCopyTest, SquaresAreThoseOfWhatWasWritten) {
  const std::vector<float> x(100, 0x1p-26F);  // A quarter of the smallest f16: written as zero.
  std::vector<f16> dst(100);
  const ScanResult scan = on_backend::gradient_copy(std::span<const float>(x), std::span<f16>(dst));
  EXPECT_EQ(scan.sum_squares, 0.0);
  EXPECT_EQ(scan.abs_max, 0.0F);
}

TEST_P(GradientCopyTest, SumOfSquaresKeepsItsPrecisionAtAnyMagnitude) {
  for (const double scale : {1.0, 1e-44, 1e-30, 1e-13, 1e17, 1e25, 1e37}) {
    SCOPED_TRACE(testing::Message() << "scale " << scale);
    check_copy<float, float>(rng.vector(20011, scale));
    check_copy<float, bf16>(rng.vector(20011, scale));
    check_copy<bf16, bf16>(rng.vector<bf16>(20011, scale));
  }
  check_copy<float, bf16>(std::vector<float>(20011, 0.1F));  // Errors that all point one way.
  check_copy<float, f16>(std::vector<float>(20011, 0.1F));
}

TEST_P(GradientCopyTest, SeesOneInfinityAtEveryPosition) {
  constexpr std::size_t kLength = 4096 + 131;
  std::vector<float> x = rng.vector(kLength);
  std::vector<f16> dst(kLength);
  for (std::size_t at = 0; at < kLength; at += step_of_calls(127)) {
    const float before = std::exchange(x[at], -65520.0F);
    ASSERT_FALSE(on_backend::gradient_copy(std::span<const float>(x), std::span<f16>(dst)).finite)
        << "at " << at;
    x[at] = before;
  }
}

TEST_P(GradientCopyTest, RejectsUnequalLengthsAndOtherPairsAndWritesNothing) {
  const std::vector<float> x(5, 1.0F);
  std::vector<bf16> dst(4, bf16{0xABCD});
  EXPECT_THAT([&] { on_backend::gradient_copy(std::span<const float>(x), std::span<bf16>(dst)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("dst has 4 elements, expected 5")));
  const auto copy = [&](std::size_t src_bytes, DType src, std::size_t dst_bytes, DType to) {
    on_backend::gradient_copy(std::as_bytes(std::span(x)).first(src_bytes), src,
                              std::as_writable_bytes(std::span(dst)).first(dst_bytes), to);
  };
  EXPECT_THAT([&] { copy(8, DType::kF16, 8, DType::kBF16); },
              ThrowsMessage<InvalidArgument>(HasSubstr("src is f16 and dst bf16, expected equal")));
  EXPECT_THAT([&] { copy(4, DType::kBF16, 8, DType::kF32); },
              ThrowsMessage<InvalidArgument>(HasSubstr("src is bf16 and dst f32")));
  EXPECT_THAT(
      [&] { copy(6, DType::kF32, 8, DType::kBF16); },
      ThrowsMessage<InvalidArgument>(HasSubstr("src has 6 bytes, expected a multiple of 4")));
  EXPECT_THAT(
      [&] { copy(8, DType::kF32, 3, DType::kF16); },
      ThrowsMessage<InvalidArgument>(HasSubstr("dst has 3 bytes, expected a multiple of 2")));
  EXPECT_THAT([&] { copy(8, DType::kF32, 8, DType::kF16); },
              ThrowsMessage<InvalidArgument>(HasSubstr("dst has 4 elements, expected 2")));
  EXPECT_EQ(dst, std::vector<bf16>(4, bf16{0xABCD}));
}

INSTANTIATE_TEST_SUITE_P(Kernels, GradientCopyTest,
                         testing::ValuesIn(built_backends("gradient_copy")), backend_name);

}  // namespace
}  // namespace sluiceway::test
