// The promises of every codec, for each family and each awkward shape, against dense double.
#include "compress/gradient_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/compress/codec_fixture.h"
#include "tests/compress/exact_learner.h"
#include "tests/support/guarded_array.h"
#include "tests/support/scan_reference.h"
#include "tests/support/tolerance.h"

namespace sluiceway::test {
namespace {

struct Case {
  std::string name;
  CodecConfig config;
  std::int64_t m, n;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class GradientCodecTest : public testing::TestWithParam<Case> {
 protected:
  GradientCodecTest()
      : codec(make_ready()),
        pair(codec->generation() == 0 ? drawn_pair(config, m, n)
                                      : stored_pair(*codec, config, m, n)),
        scratch(scratch_of(*codec)),
        g(rng.matrix(m, n)) {}

  std::unique_ptr<GradientCodec> make_ready() {
    auto made = make_codec(config, m, n, kWeight, DeviceId::host(), budget);
    Matrix calibration = Rng(77).matrix(m, n);
    OwnedMoments moments(made->core());
    ExactLearner learner;
    if (made->wants_calibration()) {
      std::vector<float> space = scratch_of(*made);
      EXPECT_TRUE(made->refresh(any_matrix(calibration), {}, learner, moments.view(), space,
                                StreamRef::host())
                      .refreshed);
    }
    EXPECT_FALSE(made->wants_calibration());
    return made;
  }

  Matrix compressed(float beta, Matrix s) {
    codec->compress(any_matrix(g), beta, s.view(), scratch, StreamRef::host());
    return s;
  }
  Matrix core_matrix(double scale = 1) {
    return rng.matrix(codec->core().rows, codec->core().cols, scale);
  }
  double largest(const MatrixF64& x) {
    double out = 0;
    for (const double v : x.v) out = std::max(out, std::abs(v));
    return out;
  }

  const CodecConfig config = GetParam().config;
  const std::int64_t m = GetParam().m, n = GetParam().n;
  Rng rng{20240611};
  Budget budget = Budget::unlimited();
  std::unique_ptr<GradientCodec> codec;
  DensePair pair;
  std::vector<float> scratch;
  Matrix g;
};

TEST_P(GradientCodecTest, CoreHasTheShapeOfItsProjectors) {
  EXPECT_EQ(codec->core().rows, pair.p.cols);
  EXPECT_EQ(codec->core().cols, pair.q.cols);
  EXPECT_EQ(codec->core().elems(), pair.p.cols * pair.q.cols);
}

TEST_P(GradientCodecTest, CompressMatchesTheDenseProduct) {
  const MatrixF64 expected = reference_core(as_f64(g), pair.p, pair.q);
  Matrix poisoned(expected.rows, expected.cols);
  for (float& x : poisoned.v) x = std::nanf("");
  EXPECT_TRUE(
      all_near(compressed(0.0F, poisoned), expected, {.abs = 1e-5 * (1 + largest(expected))}));
}

TEST_P(GradientCodecTest, MicroBatchesAddUp) {
  const Matrix before = core_matrix();
  MatrixF64 expected = reference_core(as_f64(g), pair.p, pair.q);
  for (std::size_t i = 0; i < expected.v.size(); ++i) expected.v[i] += to_f64(before.v[i]);
  EXPECT_TRUE(
      all_near(compressed(1.0F, before), expected, {.abs = 1e-5 * (1 + largest(expected))}));
}

TEST_P(GradientCodecTest, ApplyMatchesTheDenseProduct) {
  Matrix w = rng.matrix(m, n), d = core_matrix();
  MatrixF64 expected = reference_expanded(as_f64(d), pair.p, pair.q);
  for (std::size_t i = 0; i < expected.v.size(); ++i) {
    expected.v[i] = 0.75 * to_f64(w.v[i]) - 0.5 * expected.v[i];
  }
  codec->apply(any_matrix(w), {}, any_matrix(d), {.decay = 0.75F, .alpha = -0.5F}, scratch,
               StreamRef::host());
  EXPECT_TRUE(all_near(w, expected, {.abs = 1e-5 * (1 + largest(expected))}));
}

// Ranges that start and end anywhere, each with exactly the promised scratch.
TEST_P(GradientCodecTest, RangesOfTheDecompressedGradientMatchTheDenseProductInEveryCut) {
  Matrix s = core_matrix();
  const MatrixF64 expected = reference_expanded(as_f64(s), pair.p, pair.q);
  const auto range = [&]<typename T>(std::int64_t first, std::span<T> to) {
    GuardedArray<float> space(codec->range_scratch_elems(), 1);
    const ScanResult scan = codec->decompress_range(
        any_matrix(s), first, std::as_writable_bytes(to), dtype_of<T>, space.span());
    EXPECT_TRUE(space.guards_intact());
    return scan;
  };
  const auto elems = static_cast<std::size_t>(m * n);
  GuardedArray<float> exact(elems, 1);
  range(0, exact.span());
  EXPECT_TRUE(all_near(exact.values(), expected.v, {.abs = 1e-5 * (1 + largest(expected))}));
  GuardedArray<bf16> whole(elems, 3);
  const ScanResult scan = range(0, whole.span());
  expect_same(scan, reference_scan(whole.values()));
  for (std::size_t i = 0; i < elems; ++i) EXPECT_EQ(whole[i], from_float<bf16>(exact[i])) << i;
  for (const std::size_t step : {elems / 2 + 1, elems / 7 + 1, static_cast<std::size_t>(n) + 1}) {
    GuardedArray<bf16> parts(elems, 0);
    ScanResult merged;
    for (std::size_t at = 0; at < elems; at += step) {
      const std::span<bf16> part = parts.span().subspan(at, std::min(step, elems - at));
      merged = merge(merged, range(static_cast<std::int64_t>(at), part));
    }
    EXPECT_EQ(parts.values(), whole.values()) << "ranges of " << step;
    expect_same(merged, scan);
    EXPECT_TRUE(parts.guards_intact());
  }
  EXPECT_TRUE(exact.guards_intact() && whole.guards_intact());
}

TEST_P(GradientCodecTest, ARangeOfAnotherCoreOrBeyondTheGradientIsRefused) {
  Matrix s = core_matrix(), tall(codec->core().rows + 1, codec->core().cols);
  std::vector<float> space(codec->range_scratch_elems());
  std::vector<std::byte> to(4, std::byte{0xAB});
  const auto range = [&](Matrix& core, std::int64_t first) {
    codec->decompress_range(any_matrix(core), first, to, DType::kF32, space);
  };
  EXPECT_THROW(range(tall, 0), InvalidArgument);
  EXPECT_THROW(range(s, m * n), InvalidArgument);
  EXPECT_EQ(to, std::vector<std::byte>(4, std::byte{0xAB}));
}

TEST_P(GradientCodecTest, BiasMatchesTheDenseDefinition) {
  const BiasNorm expected = reference_bias(as_f64(g), pair.p, pair.q);
  const BiasNorm bias = codec->bias(any_matrix(g), scratch, StreamRef::host());
  EXPECT_NEAR(bias.grad_sq, expected.grad_sq, 1e-6 * expected.grad_sq);
  EXPECT_NEAR(bias.bias_sq, expected.bias_sq, 1e-5 * (expected.grad_sq + expected.bias_sq));
}

TEST_P(GradientCodecTest, SixteenBitGradientAndWeightAreAccepted) {
  BasicMatrix<bf16> g16 = rounded_to<bf16>(g);
  Matrix s = core_matrix();
  codec->compress(any_matrix(g16), 0.0F, s.view(), scratch, StreamRef::host());
  const MatrixF64 expected = reference_core(as_f64(g16), pair.p, pair.q);
  EXPECT_TRUE(all_near(s, expected, {.abs = 1e-5 * (1 + largest(expected))}));

  BasicMatrix<bf16> w = rounded_to<bf16>(rng.matrix(m, n));
  BasicMatrix<bf16> d = rounded_to<bf16>(core_matrix());
  MatrixF64 updated = reference_expanded(as_f64(d), pair.p, pair.q);
  for (std::size_t i = 0; i < updated.v.size(); ++i) updated.v[i] += to_f64(w.v[i]);
  codec->apply(any_matrix(w), {}, any_matrix(d), {.alpha = 1.0F}, scratch, StreamRef::host());
  EXPECT_TRUE(all_near(w, updated, {.abs = 1e-4, .eps = 0.51}));
}

TEST_P(GradientCodecTest, EqualSeedsGiveEqualBits) {
  const auto twin = make_ready();
  Matrix s = core_matrix();
  twin->compress(any_matrix(g), 0.0F, s.view(), scratch, StreamRef::host());
  EXPECT_EQ(s, compressed(0.0F, core_matrix()));
}

TEST_P(GradientCodecTest, SavedAndLoadedIsBitIdentical) {
  const auto twin = make_codec(config, m, n, kWeight, DeviceId::host(), budget);
  twin->load(codec->save());
  EXPECT_EQ(twin->save(), codec->save());
  Matrix s = core_matrix();
  twin->compress(any_matrix(g), 0.0F, s.view(), scratch, StreamRef::host());
  EXPECT_EQ(s, compressed(0.0F, core_matrix()));
}

TEST_P(GradientCodecTest, StateOfAnotherWeightIsCorrupt) {
  const auto other = make_codec(config, m, n, kWeight + 1, DeviceId::host(), budget);
  EXPECT_THAT([&] { other->load(codec->save()); },
              testing::ThrowsMessage<Corrupt>(testing::HasSubstr("weight hash")));
}

TEST_P(GradientCodecTest, WrongGradientShapeIsNamedAndTheCoreStays) {
  Matrix wide = rng.matrix(m, n + 1);
  const Matrix before = core_matrix();
  Matrix s = before;
  EXPECT_THROW(codec->compress(any_matrix(wide), 0.0F, s.view(), scratch, StreamRef::host()),
               InvalidArgument);
  EXPECT_EQ(s, before);
}

TEST_P(GradientCodecTest, CudaStreamGoesToTheCudaHalvesWhichThisBuildDoesNotHave) {
  const StreamRef stream = StreamRef::cuda(2, nullptr);
  Matrix s = core_matrix(), w(m, n);
  std::vector<float> rows(static_cast<std::size_t>(m)), cols(static_cast<std::size_t>(n));
  const AnyMatrix core = any_matrix(s);
  if (codec->core().elems() > 0) {
    EXPECT_THAT([&] { codec->compress(any_matrix(g), 0.0F, s.view(), scratch, stream); },
                testing::ThrowsMessage<Unavailable>(testing::StartsWith("compress: ")));
    EXPECT_THAT([&] { codec->apply(any_matrix(w), {}, core, {}, scratch, stream); },
                testing::ThrowsMessage<Unavailable>(testing::StartsWith("decompress: ")));
  }
  EXPECT_THROW(codec->leave_residual(any_matrix(g), s.view(), {{rows, cols}}, scratch, stream),
               Unavailable);
  EXPECT_THAT([&] { codec->bias(any_matrix(g), scratch, stream); },
              testing::ThrowsMessage<Unavailable>(testing::HasSubstr("CUDA device 2")));
}

std::vector<Case> cases() {
  struct Shape {
    std::int64_t m, n;
  };
  struct Family {
    std::string name;
    CodecConfig config;
  };
  const std::vector<Shape> shapes = {{67, 41}, {64, 96}, {5, 70}, {1, 37}, {37, 1}, {1, 1}};
  const std::vector<Family> families = {
      {"identity", {.name = "identity"}},
      {"block_quarter", {.name = "block_random", .seed = 3}},
      {"block_half", {.name = "block_random", .ratio = 0.5, .block = 8, .seed = 3}},
      {"block_whole", {.name = "block_random", .ratio = 1, .block = 16, .seed = 3}},
      {"sparse_quarter", {.name = "sparse_learned", .seed = 3}},
      {"sparse_half", {.name = "sparse_learned", .ratio = 0.5, .nnz = 8, .seed = 3}},
      {"sparse_random", {.name = "sparse_random", .seed = 3}},
      {"block_pca", {.name = "block_pca", .block = 16, .seed = 3}},
      {"svd", {.name = "svd", .seed = 3}},
      {"svd_half", {.name = "svd", .ratio = 0.5, .seed = 3}},
      {"galore", {.name = "galore", .ratio = 0.5, .seed = 3}},
      {"topk_columns", {.name = "topk_columns", .ratio = 0.5, .seed = 3}},
  };
  std::vector<Case> out;
  for (const Family& family : families) {
    for (const Shape& s : shapes) {
      out.push_back({family.name + "_" + std::to_string(s.m) + "x" + std::to_string(s.n),
                     family.config, s.m, s.n});
    }
  }
  // Groups of more than 256 rows use another algorithm for ranges.
  out.push_back({"svd_dense", {.name = "svd", .ratio = 0.1, .seed = 3}, 299, 43});
  out.push_back({"svd_wide", {.name = "svd", .ratio = 0.5, .seed = 3}, 31, 283});
  out.push_back({"galore_dense", {.name = "galore", .ratio = 0.5, .seed = 3}, 37, 301});
  out.push_back({"sparse_square", {.name = "sparse_learned", .d = 20, .seed = 3}, 67, 41});
  return out;
}

INSTANTIATE_TEST_SUITE_P(Codecs, GradientCodecTest, testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

// Core elements of size 1 become weight elements of size 1, for any rounding of groups.
TEST(GradientCodecScaleTest, OrthonormalUpdateKeepsItsSizeAfterScaling) {
  for (const double ratio : {0.25, 0.3, 0.5, 1.0}) {
    Rng rng(9);
    Budget budget = Budget::unlimited();
    const auto codec = make_codec({.ratio = ratio}, 67, 41, kWeight, DeviceId::host(), budget);
    Matrix w(67, 41), d = rng.matrix(codec->core().rows, codec->core().cols);
    std::vector<float> scratch = scratch_of(*codec);
    codec->apply(any_matrix(w), {}, any_matrix(d), {.alpha = codec->default_scale()}, scratch,
                 StreamRef::host());
    const auto mean_square = [](const Matrix& x) {
      double sum = 0;
      for (const float v : x.v) sum += to_f64(v) * to_f64(v);
      return sum / static_cast<double>(x.v.size());
    };
    EXPECT_NEAR(mean_square(w), mean_square(d), 1e-4 * mean_square(d)) << ratio;
  }
}

TEST(GradientCodecSeedTest, OtherWeightsAndOtherSeedsHaveOtherProjectors) {
  for (const char* name : {"block_random", "sparse_learned"}) {
    CodecConfig config{.name = name, .seed = 1};
    const MatrixF64 p = drawn_pair(config, 64, 64).p;
    EXPECT_NE(p, drawn_pair(config, 64, 64, 0, kWeight + 1).p) << name;
    EXPECT_NE(p, drawn_pair(config, 64, 64).q) << name;
    config.seed = 2;
    EXPECT_NE(p, drawn_pair(config, 64, 64).p) << name;
  }
}

}  // namespace
}  // namespace sluiceway::test
