// make_fp8_image() against the definition in double, on every instruction set; perturb() and
// materialise() of an image against the same calls with its values, on every backend.
#include "kernels/fp8_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/device/denormals.h"
#include "tests/support/fp8_reference.h"
#include "tests/support/guarded_array.h"
#include "tests/support/noise_reference.h"
#include "tests/support/on_backend.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kLengths[] = {0, 1, 2, 67, 127, 128, 129, 2047, 2048, 2049, 4099};
constexpr NoiseKey kKey{11, 22, 33, 4};

std::vector<std::byte> image_of(const std::vector<float>& values, std::size_t offset = 0) {
  const GuardedArray<float> in(values, offset);
  GuardedArray<std::byte> image(fp8_image_bytes(values.size()), offset);
  cpu::make_fp8_image(in.span(), image.span());
  EXPECT_TRUE(image.guards_intact());
  return image.values();
}

void expect_definition(const std::vector<float>& values, std::size_t offset = 0) {
  const std::vector<std::byte> found = image_of(values, offset);
  const std::vector<std::byte> expected = reference_fp8_image(values);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i], expected[i]) << "byte " << i << " of " << values.size() << " values";
  }
}

// Numbers of every size that a block may contain beside its largest.
std::vector<float> uneven(Rng& rng, std::int64_t length, double magnitude) {
  std::vector<float> x = rng.vector(length, magnitude);
  for (float& each : x) each *= std::ldexp(1.0F, -static_cast<int>(rng.below(30)));
  return x;
}

class Fp8ImageTest : public BackendTest {
 protected:
  Rng rng{20261124};
};

TEST_P(Fp8ImageTest, IsWhatTheDefinitionSaysForEveryLengthAndMagnitude) {
  std::size_t offset = 0;
  for (const std::int64_t length : kLengths) {
    for (const double magnitude : {1.0, 3e-3, 1e-30, 1e-36, 1e30}) {
      expect_definition(uneven(rng, length, magnitude), ++offset % 7);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Fp8ImageTest, KeepsEveryNumberOfTheFormatAndRoundsWhatLiesBetweenToNearestEven) {
  for (const int exponent : {-116, -30, 0, 7, 119}) {
    std::vector<float> x;
    for (unsigned code = 0; code < 126; ++code) {
      const auto low = static_cast<float>(e4m3_value(code) * std::ldexp(1.0, exponent));
      const auto high = static_cast<float>(e4m3_value(code + 1) * std::ldexp(1.0, exponent));
      const float middle = low / 2 + high / 2;
      for (const float each :
           {low, high, middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
        x.push_back(each);
        x.push_back(-each);
      }
      x.resize((x.size() + 127) / 128 * 128);
      x.back() = std::ldexp(448.0F, exponent);  // So that this is the scale of each block.
    }
    expect_definition(x);
    const std::vector<std::byte> image = image_of(x);
    EXPECT_EQ(static_cast<int>(image[0]), exponent + 127);
    const std::vector<float> values = reference_fp8_values(image, x.size());
    for (std::size_t i = 0; i < x.size(); i += 128) {
      for (const std::size_t k : {0U, 1U, 2U, 3U}) EXPECT_EQ(values[i + k], x[i + k]) << i + k;
    }
  }
}

TEST_P(Fp8ImageTest, ScalesSoThatNoLargestElementIsCutOff) {
  for (const int exponent : {-100, -8, 0, 100}) {
    const float largest[] = {448, 463.99F, 464, std::nextafter(464.0F, 1e9F), 479, 480, 511, 512};
    for (const float each : largest) {
      std::vector<float> x = rng.vector(131, 0.1);
      for (float& other : x) other = std::ldexp(other, exponent);
      x[77] = -std::ldexp(each, exponent);
      expect_definition(x);
      const std::vector<std::byte> image = image_of(x);
      EXPECT_EQ(static_cast<int>(image[0]), exponent + 127 + (each > 464 ? 1 : 0)) << each;
      EXPECT_NEAR(reference_fp8_values(image, x.size())[77], x[77], std::abs(x[77]) / 16);
    }
  }
}

TEST_P(Fp8ImageTest, KeepsWhatIsNotFiniteToItselfAndTheRestFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {kInf,     -kInf,     std::nanf(""), -std::nanf(""), FLT_MAX,
                           -FLT_MAX, 0x1p-126F, -1e-39F,       0x1p-149F,      -0.0F};
  for (const float each : special) {
    for (const std::size_t at : {0U, 127U, 128U, 130U}) {
      std::vector<float> x = rng.vector(131, 0.02);
      x[at] = each;
      expect_definition(x);
      const std::vector<float> values = reference_fp8_values(image_of(x), x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_EQ(std::isfinite(values[i]), i != at || std::isfinite(each)) << each << " at " << i;
      }
    }
    expect_definition(std::vector<float>(131, each));
  }
}

TEST_P(Fp8ImageTest, HasTheSameBitsOnAThreadThatFlushesDenormals) {
  std::vector<float> x = uneven(rng, 2049, 1e-36);
  for (const float each : {0x1p-126F, 0x1.fffffep-127F, -0x1p-127F, 0x1p-116F}) x.push_back(each);
  const std::vector<std::byte> image = image_of(x);
  const std::vector<float> values = reference_fp8_values(image, x.size());
  const bool before = flush_denormals(true);
  const std::vector<std::byte> flushed = image_of(x);
  std::vector<float> read(x.size());
  cpu::materialise(flushed, WeightForm::fp8_image(), std::as_writable_bytes(std::span(read)),
                   DType::kF32, {});
  flush_denormals(before);
  EXPECT_EQ(image, flushed);
  EXPECT_EQ(read, values);
}

TEST_P(Fp8ImageTest, OfARangeThatBeginsAtATileIsAPartOfTheWhole) {
  const std::vector<float> x = rng.vector(3 * 2048 + 67);
  const std::vector<std::byte> whole = image_of(x);
  std::vector<std::byte> parts;
  for (std::size_t begin = 0, end = 0; begin < x.size(); begin = end) {
    end = std::min(x.size(), begin + 2048 * (1 + begin / 2048));
    const auto at = [&](std::size_t i) { return x.begin() + static_cast<std::ptrdiff_t>(i); };
    const std::vector<std::byte> part = image_of({at(begin), at(end)});
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(whole, parts);
}

TEST_P(Fp8ImageTest, RejectsAnImageOfAnotherSizeAndWritesNothing) {
  const std::vector<float> x(2049, 1.0F);
  std::vector<std::byte> image(2080);
  EXPECT_THAT([&] { cpu::make_fp8_image(x, image); },
              ThrowsMessage<InvalidArgument>(HasSubstr("2080 bytes, expected 2081 for 2049")));
  EXPECT_EQ(image, std::vector<std::byte>(2080));
}

TEST_P(Fp8ImageTest, SaysOfHowManyElementsItIs) {
  const WeightForm form = WeightForm::fp8_image();
  for (const std::size_t elems : {0U, 1U, 67U, 2047U, 2048U, 2049U, 4097U}) {
    EXPECT_EQ(form.elems(form.bytes(elems)), elems);
  }
  for (const std::size_t bytes : {1U, 15U, 16U, 2065U, 2080U}) {
    EXPECT_EQ(form.elems(bytes), std::nullopt) << bytes;
  }
  EXPECT_EQ(WeightForm(DType::kF16).elems(7), std::nullopt);
  EXPECT_EQ(WeightForm(DType::kF32).elems(28), 7U);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Fp8ImageTest, testing::ValuesIn(host_backends()), backend_name);

// ---- Weights that are read from an image -------------------------------------------------------

class PerturbFp8Test : public BackendTest {
 protected:
  template <typename Out>
  void check(const std::vector<float>& w, const Theta& theta, std::size_t offset) {
    const std::vector<std::byte> made = reference_fp8_image(w);
    const std::vector<float> values = reference_fp8_values(made, w.size());
    const GuardedArray<std::byte> image(made, offset);
    GuardedArray<Out> plus(w.size(), offset + 1), minus(w.size(), 3), out(w.size(), offset);
    const WeightForm form = WeightForm::fp8_image();
    constexpr float kEps = 1e-3F;
    on_backend::perturb(image.span(), form, std::as_writable_bytes(plus.span()),
                        std::as_writable_bytes(minus.span()), dtype_of<Out>, theta, kKey, kEps);
    on_backend::materialise(image.span(), form, std::as_writable_bytes(out.span()), dtype_of<Out>,
                            theta);
    for (std::size_t k = 0; k < w.size(); ++k) {
      const float at = reference_theta(values[k], theta, k);
      const float z = reference_z(theta.family, kKey, theta.first + k);
      ASSERT_TRUE(same(plus[k], from_float<Out>(std::fma(kEps, z, at)))) << "element " << k;
      ASSERT_TRUE(same(minus[k], from_float<Out>(std::fma(-kEps, z, at)))) << "element " << k;
      ASSERT_TRUE(same(out[k], from_float<Out>(at))) << "element " << k;
    }
    ASSERT_TRUE(plus.guards_intact() && minus.guards_intact() && out.guards_intact());
  }

  Rng rng{20261125};
};

TEST_P(PerturbFp8Test, ReadsTheValuesOfAnImageWhereverItLiesAndBegins) {
  for (const NoiseFamily family : {NoiseFamily::kRademacher, NoiseFamily::kGaussian}) {
    for (const std::int64_t length : kLengths) {
      for (const std::uint64_t first : {0U, 1U, 2040U}) {
        SCOPED_TRACE(testing::Message() << length << " elements from " << first);
        const std::vector<float> w = uneven(rng, length, 0.05);
        check<bf16>(w, {family, first}, 0);
        check<float>(w, {family, first, 0.999F}, first % 3);
        check<f16>(w, {family, first}, 8);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(PerturbFp8Test, AddsPendingUpdatesToTheValuesOfAnImage) {
  for (const NoiseFamily family : {NoiseFamily::kRademacher, NoiseFamily::kByteQuantile}) {
    const std::vector<PendingUpdate> pending = {{{7, 1, 3, 0}, 1e-2F}, {{7, 2, 3, 1}, -3e-2F}};
    for (const std::int64_t length : {1, 2049, 4101}) {
      const std::vector<float> w = uneven(rng, length, 0.05);
      check<bf16>(w, {family, 9, 0.99F, pending}, 1);
      check<float>(w, {family, 0, 1.0F, pending}, 0);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(PerturbFp8Test, ReadsEveryCodeAtTheEndsOfTheScales) {
  const float tiny = std::ldexp(448.0F, -116), huge = std::ldexp(448.0F, 119);
  for (const float largest : {tiny, huge, 448.0F}) {
    std::vector<float> w(256);
    for (unsigned code = 0; code < 256; ++code) {
      w[code] = static_cast<float>(e4m3_value(code) * static_cast<double>(largest) / 448);
    }
    w[127] = -largest, w[255] = std::nanf("");
    check<float>(w, {}, 1);
    check<float>(w, {}, 0);
    check<bf16>(w, {}, 0);
  }
}

TEST_P(PerturbFp8Test, RejectsBytesOfNoImage) {
  std::vector<std::byte> image(2065), out(4);
  EXPECT_THAT(
      [&] {
        on_backend::materialise(std::span<const std::byte>(image), WeightForm::fp8_image(),
                                std::span(out), DType::kF32, {});
      },
      ThrowsMessage<InvalidArgument>(
          HasSubstr("w has 2065 bytes, which is no size of an fp8 image")));
}

INSTANTIATE_TEST_SUITE_P(Kernels, PerturbFp8Test, testing::ValuesIn(built_backends("perturb")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
