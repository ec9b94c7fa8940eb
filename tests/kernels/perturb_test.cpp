// perturb() and materialise() against std::fma one element at a time, on every backend.
#include "kernels/perturb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/base/error.h"
#include "tests/support/guarded_array.h"
#include "tests/support/noise_reference.h"
#include "tests/support/on_backend.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr NoiseKey kKey{11, 22, 33, 4}, kRoundingKey{5, 6, 7, 8};
constexpr NoiseFamily kFamilies[] = {NoiseFamily::kRademacher, NoiseFamily::kByteQuantile,
                                     NoiseFamily::kGaussian};

std::vector<PendingUpdate> updates(std::size_t count) {
  std::vector<PendingUpdate> pending(count);
  for (std::size_t k = 0; k < count; ++k) {
    pending[k] = {{kKey.seed, 100 + k, kKey.tensor, kKey.purpose},
                  k % 4 == 2 ? 0.0F : 0.01F / static_cast<float>(k + 1)};
  }
  return pending;
}

template <typename W, typename Out>
void check_perturb(const std::vector<W>& w, const Theta& theta, float eps, std::size_t offset = 0) {
  SCOPED_TRACE(testing::Message() << to_string(theta.family) << ", " << w.size() << " elements of "
                                  << to_string(dtype_of<W>) << " to " << to_string(dtype_of<Out>)
                                  << " from " << theta.first << ", " << theta.pending.size()
                                  << " pending");
  const GuardedArray<W> in(w, offset);
  GuardedArray<Out> plus(w.size(), offset + 1), minus(w.size(), offset + 2), out(w.size(), offset);
  const auto bytes = std::as_bytes(in.span());
  on_backend::perturb(bytes, dtype_of<W>, std::as_writable_bytes(plus.span()),
                      std::as_writable_bytes(minus.span()), dtype_of<Out>, theta, kKey, eps);
  on_backend::materialise(bytes, dtype_of<W>, std::as_writable_bytes(out.span()), dtype_of<Out>,
                          theta);
  for (std::size_t k = 0; k < w.size(); ++k) {
    const float at = reference_theta(to_float(w[k]), theta, k);
    const float z = reference_z(theta.family, kKey, theta.first + k);
    ASSERT_TRUE(same(plus[k], from_float<Out>(std::fma(eps, z, at)))) << "element " << k;
    ASSERT_TRUE(same(minus[k], from_float<Out>(std::fma(-eps, z, at)))) << "element " << k;
    ASSERT_TRUE(same(out[k], from_float<Out>(at))) << "element " << k;
  }
  ASSERT_TRUE(plus.guards_intact() && minus.guards_intact() && out.guards_intact());
}

class PerturbTest : public BackendTest {
 protected:
  template <typename W, typename Out>
  void check_lengths() {
    const std::vector<PendingUpdate> pending = updates(3);
    for (const NoiseFamily family : kFamilies) {
      for (const std::int64_t length : {0, 1, 2, 17, 67, 2048, 4099}) {
        for (const std::uint64_t first : {0U, 1U, 255U, 2047U, 4096U}) {
          const std::span<const PendingUpdate> some =
              std::span(pending).first(static_cast<std::size_t>(length) % 4);
          check_perturb<W, Out>(rng.vector<W>(length, 0.1), {family, first, 0.999F, some}, 1e-3F,
                                first % 3);
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  Rng rng{20261123};
};

TEST_P(PerturbTest, FollowsTheDefinitionForEveryTypeStartAndLength) {
  check_lengths<float, float>();
  check_lengths<float, bf16>();
  check_lengths<float, f16>();
  check_lengths<bf16, bf16>();
  check_lengths<bf16, float>();
  check_lengths<bf16, f16>();
  check_lengths<f16, f16>();
  check_lengths<f16, float>();
  check_lengths<f16, bf16>();
}

TEST_P(PerturbTest, AppliesManyUpdatesInTheirOrder) {
  for (const std::size_t count : {31U, 32U, 33U, 100U}) {
    const std::vector<PendingUpdate> pending = updates(count);
    for (const NoiseFamily family : kFamilies) {
      check_perturb<float, float>(rng.vector(131), {family, 1000, 0.97F, pending}, 0.01F);
    }
  }
}

TEST_P(PerturbTest, PassesWhatIsSpecialAndOverflowsToInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float special[] = {kInf,     -kInf,   std::nanf(""), 0.0F,      -0.0F,  65504.0F,
                           -65519.F, 3.3e38F, -3.39e38F,     0x1p-130F, 1e-45F, 1.0F};
  std::vector<float> w;
  for (int i = 0; i < 700; ++i) w.push_back(special[i % 12]);
  const PendingUpdate zero[] = {{kKey, 0.0F}};
  for (const NoiseFamily family : kFamilies) {
    for (const float eps : {0.0F, 1e-3F, 40.0F, 1e37F}) {
      const Theta theta{family, 3, 1.0F, zero};
      check_perturb<float, float>(w, theta, eps);
      check_perturb<float, f16>(w, theta, eps);
      check_perturb<float, bf16>(w, {family, 3}, eps);
    }
  }
}

TEST_P(PerturbTest, RangesGiveTheBitsOfTheWhole) {
  const std::vector<float> w = rng.vector(9001);
  const std::vector<PendingUpdate> pending = updates(2);
  for (const NoiseFamily family : kFamilies) {
    std::vector<bf16> whole(w.size()), parts(w.size());
    const auto run = [&](std::vector<bf16>& out, std::size_t from, std::size_t to) {
      on_backend::materialise(std::as_bytes(std::span(w).subspan(from, to - from)), DType::kF32,
                              std::as_writable_bytes(std::span(out).subspan(from, to - from)),
                              DType::kBF16, {family, 50 + from, 0.9F, pending},
                              Rounding::kStochastic, kRoundingKey);
    };
    run(whole, 0, w.size());
    for (std::size_t from = 0; from < w.size();) {
      const std::size_t to =
          std::min(w.size(), from + 1 + static_cast<std::size_t>(rng.below(3000)));
      run(parts, from, to);
      from = to;
    }
    EXPECT_EQ(whole, parts) << to_string(family);
  }
}

TEST_P(PerturbTest, MaterialisesStochasticallyInPlaceWithTheBitsOfRoundingElsewhere) {
  for (const std::uint64_t first : {0U, 7U, 2040U}) {
    const std::vector<bf16> w = rng.vector<bf16>(4101);
    const std::vector<PendingUpdate> pending = updates(2);
    const Theta theta{NoiseFamily::kGaussian, first, 0.99F, pending};
    GuardedArray<bf16> in_place(w, 3);
    on_backend::materialise(std::as_bytes(in_place.span_const()), DType::kBF16,
                            std::as_writable_bytes(in_place.span()), DType::kBF16, theta,
                            Rounding::kStochastic, kRoundingKey);
    for (std::size_t k = 0; k < w.size(); ++k) {
      const float at = reference_theta(to_float(w[k]), theta, k);
      ASSERT_EQ(in_place[k], reference_stochastic(at, noise_16(kRoundingKey, first + k))) << k;
    }
    EXPECT_TRUE(in_place.guards_intact());
  }
}

TEST_P(PerturbTest, RejectsWrongSizesRoundingsAndTooManyUpdatesAndWritesNothing) {
  const std::vector<float> w(5, 1.0F);
  std::vector<bf16> a(5, bf16{0xABCD}), b(4, bf16{0xABCD});
  const auto bytes = std::as_bytes(std::span(w));
  const auto to = std::as_writable_bytes(std::span(a)), less = std::as_writable_bytes(std::span(b));
  EXPECT_THAT(
      [&] { on_backend::perturb(bytes, DType::kF32, to, less, DType::kBF16, {}, kKey, 1.0F); },
      ThrowsMessage<InvalidArgument>(HasSubstr("minus has 8 bytes, expected 10 for 5 elements")));
  EXPECT_THAT(
      [&] { on_backend::perturb(bytes, DType::kF32, less, to, DType::kBF16, {}, kKey, 1.0F); },
      ThrowsMessage<InvalidArgument>(HasSubstr("plus has 8 bytes, expected 10")));
  EXPECT_THAT([&] { on_backend::materialise(bytes.first(6), DType::kF32, to, DType::kBF16, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("w has 6 bytes, expected a multiple of 4")));
  EXPECT_THAT(
      [&] {
        on_backend::materialise(bytes, DType::kF32, to, DType::kF16, {}, Rounding::kStochastic);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("this rounding is not supported for f16")));
  const std::vector<PendingUpdate> many(kMaxPending + 1);
  EXPECT_THAT(
      [&] { on_backend::materialise(bytes, DType::kF32, to, DType::kBF16, {.pending = many}); },
      ThrowsMessage<InvalidArgument>(HasSubstr("1025 pending updates, expected at most 1024")));
  EXPECT_EQ(a, std::vector<bf16>(5, bf16{0xABCD}));
  EXPECT_EQ(b, std::vector<bf16>(4, bf16{0xABCD}));
}

INSTANTIATE_TEST_SUITE_P(Kernels, PerturbTest, testing::ValuesIn(built_backends("perturb")),
                         backend_name);

}  // namespace
}  // namespace sluiceway::test
