// A codec that the library does not have: one class and one row, and everything works with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/codec_families.h"
#include "compress/refresh_policy.h"
#include "runtime/engine/subspace/weight_plan.h"
#include "tests/compress/codec_fixture.h"
#include "tests/support/every_kth_row.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class CustomCodecTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { register_codec(every_kth_row()); }

  static constexpr std::int64_t kM = 10, kN = 7;
  const CodecConfig config{.name = "every_kth_row", .ratio = 0.25};
  Rng rng{5};
  Budget budget = Budget::unlimited();
  std::unique_ptr<GradientCodec> codec =
      make_codec(config, kM, kN, kWeight, DeviceId::host(), budget);
};

TEST_F(CustomCodecTest, IsMadeByItsNameAndCostsWhatItsRowSays) {
  EXPECT_EQ(codec->name(), "every_kth_row");
  EXPECT_EQ(codec->core().rows, 3);
  EXPECT_EQ(core_shape(config, kM, kN).elems(), codec->core().elems());
  EXPECT_EQ(projector_bytes(config, kM, kN), budget.used(Tier::kDevice));
  EXPECT_EQ(codec_scratch_elems(config, kM, kN), 0U);
  EXPECT_EQ(refresh_scratch_elems(config, kM, kN), 0U);
  EXPECT_EQ(range_scratch_elems(config, kM, kN), 0U);
  EXPECT_EQ(RefreshPolicy::default_config("every_kth_row").every, 7);
}

TEST_F(CustomCodecTest, DoesWhatACodecDoes) {
  Matrix g = rng.matrix(kM, kN), s(3, kN), w(kM, kN);
  codec->compress(any_matrix(g), 0, s.view(), {}, StreamRef::host());
  EXPECT_EQ(s(1, 2), g(4, 2));
  codec->apply(any_matrix(w), {}, any_matrix(s), {.alpha = 2}, {}, StreamRef::host());
  EXPECT_EQ(w(8, 6), 2 * g(8, 6));
  EXPECT_EQ(w(1, 0), 0);
  std::vector<float> range(2);
  codec->decompress_range(any_matrix(s), 4 * kN - 1, std::as_writable_bytes(std::span(range)),
                          DType::kF32, {});
  EXPECT_EQ(range, (std::vector<float>{0, g(4, 0)}));
  const double rho = relative_bias(codec->bias(any_matrix(g), {}, StreamRef::host()));
  EXPECT_GT(rho, 0);
  EXPECT_LT(rho, 1);
  make_codec(config, kM, kN, kWeight, DeviceId::host(), budget)->load(codec->save());
}

TEST_F(CustomCodecTest, ErrorsListItsName) {
  EXPECT_EQ(resolve_codec("every_kth_row"), "every_kth_row");
  EXPECT_THAT([] { resolve_codec("every_row"); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("auto svd block_random"), HasSubstr("none every_kth_row"))));
  CodecConfig square = config;
  square.d = 3;
  EXPECT_THAT([&] { core_shape(square, kM, kN); },
              ThrowsMessage<InvalidArgument>(HasSubstr("d is 3 for every_kth_row")));
}

TEST_F(CustomCodecTest, WeightIsPlannedWithIt) {
  WeightSpec spec;
  spec.name = "w";
  spec.rows = kM;
  spec.cols = kN;
  spec.codec = config;
  spec.wire = WireFormat::kF32;
  const WeightPlan plan = plan_weight(spec, false, DeviceId::host());
  EXPECT_EQ(plan.core.rows, 3);
  EXPECT_EQ(plan.projector_bytes, 3 * sizeof(std::int64_t));
  EXPECT_EQ(plan.d2h_bytes, 3U * kN * sizeof(float));
}

TEST_F(CustomCodecTest, TableHasItsRow) {
  const CodecFamily* row = find_codec_family("every_kth_row");
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(codec_families().back(), row);
  EXPECT_TRUE(row->leaves_complement(4));
}

TEST(RegisterCodecTest, NameThatIsTakenOrUnusableIsRefused) {
  const auto refused = [](const std::string& name, const char* text) {
    CodecFamily family = every_kth_row();
    family.name = name;
    EXPECT_THAT([&] { register_codec(family); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused("svd", "\"svd\" already exists");
  refused("every_kth_row", "already exists");
  refused("galore", "already exists");
  refused("auto", "not \"auto\"");
  refused("", "expected 1 to 16 characters");
  refused("a_name_of_17_char", "expected 1 to 16 characters");
  CodecFamily hollow = every_kth_row();
  hollow.name = "hollow";
  hollow.make = nullptr;
  EXPECT_THAT([&] { register_codec(hollow); },
              ThrowsMessage<InvalidArgument>(HasSubstr("needs both core and make")));
}

TEST(CodecFamiliesTest, BuiltInRowsSayWhatTheirCodecsAre) {
  Budget budget = Budget::unlimited();
  for (const CodecFamily* family : codec_families()) {
    if (family->name == "every_kth_row") continue;
    const auto codec =
        make_codec({.name = family->name}, 64, 48, kWeight, DeviceId::host(), budget);
    EXPECT_EQ(codec->learns(), family->learns) << family->name;
    EXPECT_EQ(family->offered, family->name != "galore" && family->name != "topk_columns");
    // 1/f is the scale of orthonormal columns; identity and none do not need it.
    EXPECT_EQ(codec->default_scale() != 1.0F,
              family->leaves_complement(4) && codec->core().elems() > 0)
        << family->name;
  }
  EXPECT_TRUE(find_codec_family("sparse_random")->leaves_complement(1));
  EXPECT_FALSE(find_codec_family("sparse_random")->leaves_complement(4));
  EXPECT_EQ(find_codec_family("auto"), nullptr);
}

}  // namespace
}  // namespace sluiceway::test
