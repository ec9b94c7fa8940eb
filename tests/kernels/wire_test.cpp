// pack() and unpack() against plain loops in double, on every backend of this build.
#include "kernels/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/on_backend.h"
#include "tests/support/rng.h"
#include "tests/support/scan_reference.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLengths[] = {0, 1, 7, 63, 64, 65, 127, 2047, 2048, 2111, 4099};
constexpr WireFormat kFormats[] = {WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8};

// The wire is bytes, aligned to exactly 4.
struct Wire {
  Wire(WireFormat f, std::size_t elems)
      : format(f), array(wire_bytes(f, static_cast<std::int64_t>(elems)), 4) {}
  std::span<std::byte> bytes() { return array.span(); }

  WireFormat format;
  GuardedArray<std::byte> array;
};

class WireTest : public BackendTest {
 protected:
  // Packs and unpacks with starts off any vector boundary; the scan goes to `scan`.
  std::vector<float> round_trip(WireFormat format, const std::vector<float>& x, ScanResult* scan) {
    const GuardedArray<float> values(x, 3);
    Wire wire(format, x.size());
    GuardedArray<float> back(x.size(), 5);
    *scan = on_backend::pack(format, values.span(), wire.bytes());
    on_backend::unpack(format, wire.bytes(), back.span());
    EXPECT_TRUE(wire.array.guards_intact());
    EXPECT_TRUE(back.guards_intact());
    return back.values();
  }

  static double group_scale(const std::vector<float>& x, std::size_t i) {
    const std::size_t first = i / 64 * 64, last = std::min(x.size(), first + 64);
    double largest = 0.0;
    for (std::size_t j = first; j < last; ++j) largest = std::max(largest, std::abs(to_f64(x[j])));
    return largest / 127;
  }

  Rng rng{20240615};
};

TEST_P(WireTest, BytesFollowTheFormula) {
  EXPECT_EQ(wire_bytes(WireFormat::kF32, 65), 260U);
  EXPECT_EQ(wire_bytes(WireFormat::kBF16, 65), 130U);
  EXPECT_EQ(wire_bytes(WireFormat::kInt8, 0), 0U);
  EXPECT_EQ(wire_bytes(WireFormat::kInt8, 64), 68U);
  EXPECT_EQ(wire_bytes(WireFormat::kInt8, 65), 73U);
}

TEST_P(WireTest, F32IsACopy) {
  for (const std::int64_t length : kLengths) {
    const std::vector<float> x = rng.vector(length);
    ScanResult scan;
    EXPECT_EQ(round_trip(WireFormat::kF32, x, &scan), x);
  }
}

TEST_P(WireTest, Bf16IsTheNearest) {
  for (const std::int64_t length : kLengths) {
    const std::vector<float> x = rng.vector(length);
    ScanResult scan;
    const std::vector<float> back = round_trip(WireFormat::kBF16, x, &scan);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(back[i], to_float(from_float<bf16>(x[i]))) << "element " << i << " of " << length;
    }
  }
}

TEST_P(WireTest, Int8IsWithinHalfAScaleOfItsGroup) {
  for (const double magnitude : {1.0, 1e-30, 1e30}) {
    for (const std::int64_t length : kLengths) {
      std::vector<float> x = rng.vector(length, magnitude);
      for (std::size_t i = 0; i < x.size(); i += 64) x[i] *= static_cast<float>(1 + i);
      ScanResult scan;
      const std::vector<float> back = round_trip(WireFormat::kInt8, x, &scan);
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(back[i], x[i], 0.50002 * group_scale(x, i)) << i << " of " << length;
      }
    }
  }
}

TEST_P(WireTest, Int8KeepsWhatItCanRepresent) {
  std::vector<float> x(64);
  for (std::size_t i = 0; i < 64; ++i) x[i] = static_cast<float>(static_cast<int>(i) * 4 - 127);
  x[63] = 127.0F;
  ScanResult scan;
  EXPECT_EQ(round_trip(WireFormat::kInt8, x, &scan), x);  // absmax 127: the scale is 1.
}

TEST_P(WireTest, Int8OfZerosAndOfSubnormalsIsZero) {
  for (const float tiny : {0.0F, -0.0F, 0x1p-149F, 0x1p-126F}) {
    ScanResult scan;
    const std::vector<float> back =
        round_trip(WireFormat::kInt8, std::vector<float>(70, tiny), &scan);
    EXPECT_EQ(back, std::vector<float>(70, 0.0F));
    EXPECT_TRUE(scan.finite);
    EXPECT_EQ(scan.abs_max, std::abs(tiny));
  }
}

TEST_P(WireTest, ScanDescribesTheValues) {
  for (const WireFormat format : kFormats) {
    for (const std::int64_t length : kLengths) {
      const std::vector<float> x = rng.vector(length);
      const ScanResult expected = reference_scan(x);
      ScanResult scan;
      round_trip(format, x, &scan);
      EXPECT_EQ(scan.finite, expected.finite);
      EXPECT_EQ(scan.abs_max, expected.abs_max);
      EXPECT_NEAR(scan.sum_squares, expected.sum_squares, 5e-7 * expected.sum_squares);
    }
  }
}

TEST_P(WireTest, NotFiniteIsFlaggedAndNeverArrivesFinite) {
  for (const std::uint32_t bits : {0x7F800000U, 0xFF800000U, 0x7F800001U, 0x7FC00000U}) {
    for (const WireFormat format : kFormats) {
      for (const std::size_t at : {0U, 63U, 64U, 130U}) {
        std::vector<float> x = rng.vector(131);
        x[at] = std::bit_cast<float>(bits);
        ScanResult scan;
        const std::vector<float> back = round_trip(format, x, &scan);
        EXPECT_FALSE(scan.finite);
        EXPECT_FALSE(std::isfinite(back[at]));
      }
    }
  }
}

TEST_P(WireTest, NanSpoilsItsOwnGroupOnly) {
  std::vector<float> x = rng.vector(131);
  x[70] = std::bit_cast<float>(0x7FC00000U);
  ScanResult scan;
  const std::vector<float> back = round_trip(WireFormat::kInt8, x, &scan);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(std::isnan(back[i]), i / 64 == 1) << "element " << i;
  }
}

TEST_P(WireTest, RejectsWrongSizesAndMisalignedWires) {
  const std::vector<float> x(65, 1.0F);
  alignas(4) std::byte wire[128] = {};
  const std::span<std::byte> all(wire);
  EXPECT_THAT([&] { on_backend::pack(WireFormat::kInt8, x, all.first(72)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("72 bytes, expected 73 for 65 values")));
  EXPECT_THAT([&] { on_backend::pack(WireFormat::kInt8, x, all.subspan(1, 73)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("1 bytes past a multiple of 4")));
  std::vector<float> back(65, 7.0F);
  EXPECT_THAT([&] { on_backend::unpack(WireFormat::kBF16, all, back); },
              ThrowsMessage<InvalidArgument>(HasSubstr("128 bytes, expected 130 for 65 values")));
  EXPECT_EQ(back, std::vector<float>(65, 7.0F));
  EXPECT_EQ(wire[0], std::byte{0});
}

INSTANTIATE_TEST_SUITE_P(Kernels, WireTest, testing::ValuesIn(built_backends("wire")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
