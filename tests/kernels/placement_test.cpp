// Placement, which runs kernels on a device, with the host posing as one: results are equal, calls
// in place stay in place, and forbidden writes are noticed.
#include "tests/support/placement.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/support/on_backend.h"
#include "tests/support/projector_fixture.h"

namespace sluiceway::test {
namespace {

const DeviceId kHost = DeviceId::host();

template <typename Kernel, typename... Args>
void run_placed(const Kernel& kernel, const Args&... args) {
  on_backend::run(kHost, false, kernel, args...);
}

TEST(PlacementTest, GivesTheBitsOfACallWithoutIt) {
  Rng rng(20261122);
  const OwnedSparseRows p = random_sparse(rng, 67, 23, 3), q = random_sparse(rng, 41, 17, 3);
  PaddedMatrix<bf16> g(rounded_to<bf16>(rng.matrix(67, 41)));
  Matrix plain(23, 17), placed(23, 17);
  std::vector<float> scratch(
      static_cast<std::size_t>(compress_scratch_elems(p.view(), q.columns())));
  cpu::compress(plain.view(), 0, g.any(), p.view(), q.columns(), scratch);
  run_placed([](auto... a) { compress(a...); }, placed.view(), 0.0F, g.any(), p.view(), q.columns(),
             std::span<float>(scratch));
  EXPECT_EQ(placed, plain);
  EXPECT_TRUE(g.padding_intact());
}

TEST(PlacementTest, CallInPlaceStaysInPlace) {
  const std::vector<float> g = {1, -2, 3};
  std::vector<float> m(3), v(3), w(3, 1), m2(3), v2(3), w2(3, 1);
  cpu::adam_step(std::span<const float>(g), 1.0F, AdamMoments::in_place(m, v), AdamHyper{},
                 MasterWeight{w, w});
  run_placed([](auto... a) { adam_step<float, MasterWeight>(a...); }, std::span<const float>(g),
             1.0F, AdamMoments::in_place(m2, v2), AdamHyper{}, MasterWeight{w2, w2});
  EXPECT_EQ(w2, w);
  EXPECT_EQ(m2, m);
  EXPECT_EQ(v2, v);
}

TEST(PlacementTest, ViewsOfOneArrayKeepTheirDistance) {
  std::vector<float> x = {1, 2, 3, 4};
  const std::span<float> all(x);
  run_placed(
      [](std::span<float> a, std::span<float> b, StreamRef) {
        EXPECT_EQ(b.data() - a.data(), 1);
        b[0] = 7;
      },
      all.first(3), all.subspan(1));
  EXPECT_EQ(x, (std::vector<float>{1, 7, 3, 4}));
}

TEST(PlacementTest, WhatAKernelWroteBeforeItThrewIsSeen) {
  std::vector<float> x(2);
  EXPECT_THROW(run_placed(
                   [](std::span<float> a, StreamRef) {
                     a[1] = 5;
                     throw InvalidArgument("late");
                   },
                   std::span<float>(x)),
               InvalidArgument);
  EXPECT_EQ(x[1], 5);
}

TEST(PlacementTest, WritesOutsideOfAnArgumentFailTheTest) {
  static std::vector<float> x(5);
  EXPECT_NONFATAL_FAILURE(
      run_placed([](std::span<float> a, StreamRef) { a.data()[5] = 1; }, std::span<float>(x)),
      "past its argument");
  EXPECT_NONFATAL_FAILURE(
      run_placed([](std::span<float> a, StreamRef) { *(a.data() - 1) = 1; }, std::span<float>(x)),
      "before its argument");
  EXPECT_NONFATAL_FAILURE(
      run_placed([](std::span<const float> a, StreamRef) { const_cast<float&>(a[2]) = 1; },
                 std::span<const float>(x)),
      "only reads");
}

}  // namespace
}  // namespace sluiceway::test
