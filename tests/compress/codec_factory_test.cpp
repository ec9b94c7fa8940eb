// make_codec() and its companions: which names exist, what each rejects, what each costs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/compress/codec_fixture.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::unique_ptr<GradientCodec> make(const CodecConfig& config, std::int64_t m = 64,
                                    std::int64_t n = 48) {
  static Budget budget = Budget::unlimited();
  return make_codec(config, m, n, kWeight, DeviceId::host(), budget);
}

TEST(CodecFactoryTest, AutoIsBlockRandom) {
  EXPECT_EQ(resolve_codec("auto"), "block_random");
  EXPECT_EQ(make({})->name(), "block_random");
}

TEST(CodecFactoryTest, EachNameMakesItsFamily) {
  for (const char* name : {"svd", "block_random", "block_pca", "sparse_learned", "sparse_random",
                           "identity", "none", "galore", "topk_columns"}) {
    EXPECT_EQ(make({.name = name})->name(), name);
  }
}

TEST(CodecFactoryTest, UnknownNameListsAllThatExist) {
  EXPECT_THAT([] { resolve_codec("pca"); },
              ThrowsMessage<InvalidArgument>(AllOf(
                  HasSubstr("\"pca\""), HasSubstr("auto svd block_random block_pca sparse_learned "
                                                  "sparse_random identity none"))));
}

TEST(CodecFactoryTest, OnlySparseFamiliesTakeASquareCore) {
  for (const char* name : {"identity", "block_random", "svd", "none", "auto"}) {
    EXPECT_THAT([&] { make({.name = name, .d = 16}); },
                ThrowsMessage<InvalidArgument>(
                    AllOf(HasSubstr("d is 16"), HasSubstr("only sparse families"))));
  }
  const CoreShape core = make({.name = "sparse_learned", .d = 16})->core();
  EXPECT_EQ(core.rows, 16);
  EXPECT_EQ(core.cols, 16);
}

TEST(CodecFactoryTest, SquareCoreIsNoLargerThanTheWeight) {
  EXPECT_THAT([] { make({.name = "sparse_learned", .d = 49}); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("d is 49"), HasSubstr("64x48"))));
}

TEST(CodecFactoryTest, NumbersOutOfRangeAreNamed) {
  const auto refused = [](const CodecConfig& config, const char* text) {
    EXPECT_THAT([&] { make(config); }, ThrowsMessage<InvalidArgument>(HasSubstr(text)));
  };
  refused({.ratio = 0}, "ratio is 0");
  refused({.ratio = 1.5}, "ratio is 1.5");
  refused({.ratio = std::nan("")}, "ratio is nan");
  refused({.block = 0}, "block is 0 rows");
  refused({.block = 257}, "block is 257 rows, expected 1 to 256");
  refused({.name = "sparse_learned", .nnz = 0}, "nnz is 0");
  refused({.name = "sparse_learned", .d = -1}, "d is -1");
}

TEST(CodecFactoryTest, WeightWithoutElementsIsRefused) {
  EXPECT_THAT([] { make({}, 0, 5); }, ThrowsMessage<InvalidArgument>(HasSubstr("weight is 0x5")));
}

TEST(CodecFactoryTest, PlanAgreesWithWhatIsMade) {
  for (const CodecConfig& config :
       {CodecConfig{.name = "identity"}, CodecConfig{.ratio = 0.5},
        CodecConfig{.ratio = 0.3, .block = 7}, CodecConfig{.name = "sparse_learned"},
        CodecConfig{.name = "sparse_learned", .d = 5, .nnz = 8}, CodecConfig{.name = "svd"},
        CodecConfig{.name = "block_pca", .block = 16}, CodecConfig{.name = "galore"},
        CodecConfig{.name = "topk_columns"}, CodecConfig{.name = "none"},
        CodecConfig{.name = "sparse_random", .nnz = 1}}) {
    Budget budget = Budget::unlimited();
    const auto codec = make_codec(config, 67, 45, kWeight, DeviceId::host(), budget);
    const CoreShape planned = core_shape(config, 67, 45);
    EXPECT_EQ(planned.rows, codec->core().rows);
    EXPECT_EQ(planned.cols, codec->core().cols);
    EXPECT_EQ(projector_bytes(config, 67, 45), budget.used(Tier::kDevice));
    EXPECT_EQ(codec_scratch_elems(config, 67, 45), codec->scratch_elems());
    EXPECT_EQ(refresh_scratch_elems(config, 67, 45), codec->refresh_scratch_elems());
    EXPECT_EQ(range_scratch_elems(config, 67, 45), codec->range_scratch_elems());
    EXPECT_EQ(project_scratch_elems(config, 67, 45), codec->project_scratch_elems());
    EXPECT_EQ(project_scratch_elems(config, 67, 45) > 0, codec->projects());
  }
}

TEST(CodecFactoryTest, ACodecWithoutACoreHasNothingToDecompress) {
  Budget budget = Budget::unlimited();
  const auto codec = make_codec({.name = "none"}, 5, 7, kWeight, DeviceId::host(), budget);
  std::vector<std::byte> to(4);
  EXPECT_THAT([&] { codec->decompress_range({}, 0, to, DType::kF32, {}); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("none has no core")));
}

TEST(CodecFactoryTest, BudgetTooSmallIsRefusedAndNothingStaysReserved) {
  Budget budget({100, 0, 0, 0});
  EXPECT_THROW(make_codec({}, 64, 48, kWeight, DeviceId::host(), budget), OutOfMemory);
  EXPECT_EQ(budget.used(Tier::kDevice), 0U);
}

TEST(CodecScaleTest, OrthonormalFamilyAsksForOneOverTheRatio) {
  EXPECT_FLOAT_EQ(make({.ratio = 0.25})->default_scale(), 4.0F);
  EXPECT_FLOAT_EQ(make({.ratio = 0.5})->default_scale(), 2.0F);
}

TEST(CodecScaleTest, RoundedGroupsScaleByWhatTheyKeep) {
  const auto codec = make({.ratio = 0.25}, 67, 45);  // Cores of 17 and 11.
  const double kept = 17.0 / 67 * 11 / 45;
  EXPECT_FLOAT_EQ(codec->default_scale(), static_cast<float>(1 / std::sqrt(kept)));
}

TEST(CodecScaleTest, CountSketchHasOrthonormalColumnsToo) {
  EXPECT_FLOAT_EQ(make({.name = "sparse_random", .nnz = 1})->default_scale(), 4.0F);
}

TEST(CodecScaleTest, OtherFamiliesAreNotScaled) {
  EXPECT_EQ(make({.name = "sparse_random"})->default_scale(), 1.0F);
  EXPECT_EQ(make({.name = "none"})->default_scale(), 1.0F);
  EXPECT_EQ(make({.name = "identity"})->default_scale(), 1.0F);
  EXPECT_EQ(make({.name = "sparse_learned"})->default_scale(), 1.0F);
}

TEST(MomentTransportNameTest, IsReadFromItsName) {
  EXPECT_EQ(parse_transport("projected"), MomentTransport::kProjected);
  EXPECT_EQ(parse_transport("keep"), MomentTransport::kKeep);
  EXPECT_EQ(parse_transport("reset"), MomentTransport::kReset);
  EXPECT_THAT([] { parse_transport("drop"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("\"drop\"")));
}

}  // namespace
}  // namespace sluiceway::test
