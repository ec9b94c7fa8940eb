// A codec that this library does not bring: one class and one row, and everything works with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "compress/projector.h"
#include "compress/refresh_policy.h"
#include "runtime/engine/weight_plan.h"
#include "runtime/memory/buffer.h"
#include "tests/compress/codec_fixture.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// Keeps every k-th row of the gradient, k = round(1 / ratio): P is a selection, Q the identity.
class EveryKthRow final : public GradientCodec {
 public:
  static std::int64_t stride(const CodecConfig& config) { return std::llround(1 / config.ratio); }
  static std::int64_t kept(const CodecConfig& config, std::int64_t m) {
    return (m + stride(config) - 1) / stride(config);
  }

  explicit EveryKthRow(const CodecRequest& request)
      : GradientCodec(request.family),
        stride_(stride(request.config)),
        header_(header_of(request, {.m = request.m,
                                    .n = request.n,
                                    .dm = kept(request.config, request.m),
                                    .dn = request.n})),
        rows_(request.budget, Tier::kDevice, request.device,
              static_cast<std::size_t>(header_.dm) * sizeof(std::int64_t), "kept rows") {
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      rows_.as<std::int64_t>()[static_cast<std::size_t>(i)] = i * stride_;
    }
  }

  CoreShape core() const noexcept override { return {header_.dm, header_.dn}; }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> /*scratch*/,
                StreamRef /*stream*/) const override {
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      for (std::int64_t j = 0; j < header_.dn; ++j) {
        s.row(i)[j] = (beta == 0 ? 0 : beta * s.row(i)[j]) + g.as<float>().row(row(i))[j];
      }
    }
  }
  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> /*low*/, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> /*scratch*/,
             StreamRef /*stream*/) const override {
    for (std::int64_t i = 0; i < w.rows; ++i) {
      for (std::int64_t j = 0; j < w.cols; ++j) w.as<float>().row(i)[j] *= update.decay;
    }
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      for (std::int64_t j = 0; j < header_.dn; ++j) {
        w.as<float>().row(row(i))[j] += update.alpha * d.as<float>().row(i)[j];
      }
    }
  }
  void leave_residual(const AnyMatrix& g, MatrixView<float> /*s*/, std::span<float> /*rows*/,
                      std::span<float> /*cols*/, std::span<float> /*scratch*/,
                      StreamRef /*stream*/) const override {
    for (std::int64_t i = 0; i < header_.dm; ++i) {
      std::fill_n(g.as<float>().row(row(i)), g.cols, 0.0F);
    }
  }
  std::vector<std::byte> save() const override { return write_codec_state(header_, {}, {}); }
  void load(std::span<const std::byte> state) override { read_codec_state(state, header_); }

 protected:
  BiasNorm measure_bias(const AnyMatrix& g, std::span<float> /*scratch*/,
                        StreamRef /*stream*/) const override {
    BiasNorm norm;
    for (std::int64_t i = 0; i < g.rows; ++i) {
      for (std::int64_t j = 0; j < g.cols; ++j) {
        const double square = std::pow(static_cast<double>(g.as<float>().row(i)[j]), 2);
        norm.grad_sq += square;
        if (i % stride_ != 0) norm.bias_sq += square;
      }
    }
    return norm;
  }

 private:
  std::int64_t row(std::int64_t i) const {
    return rows_.as<std::int64_t>()[static_cast<std::size_t>(i)];
  }

  std::int64_t stride_;
  CodecStateHeader header_;
  Buffer rows_;
};

CodecFamily every_kth_row() {
  CodecFamily family;
  family.name = "every_kth_row";
  family.offered = true;
  family.complement = Complement::kAlways;
  family.refresh_every = 7;
  family.core = [](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return CoreShape{EveryKthRow::kept(config, m), n};
  };
  family.projector_bytes = [](const CodecConfig& config, std::int64_t m, std::int64_t) {
    return static_cast<std::uint64_t>(EveryKthRow::kept(config, m)) * sizeof(std::int64_t);
  };
  family.make = [](const CodecRequest& request) { return std::make_unique<EveryKthRow>(request); };
  return family;
}

class CustomCodecTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { register_codec(every_kth_row()); }

  static constexpr std::int64_t kM = 10, kN = 7;
  const CodecConfig config{.name = "every_kth_row", .ratio = 0.25};
  Rng rng{5};
  Budget budget = unlimited();
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
  EXPECT_EQ(RefreshPolicy::default_config("every_kth_row").every, 7);
}

TEST_F(CustomCodecTest, DoesWhatACodecDoes) {
  Matrix g = rng.matrix(kM, kN), s(3, kN), w(kM, kN);
  codec->compress(any_matrix(g), 0, s.view(), {}, StreamRef::host());
  EXPECT_EQ(s(1, 2), g(4, 2));
  codec->apply(any_matrix(w), {}, any_matrix(s), {.alpha = 2}, {}, StreamRef::host());
  EXPECT_EQ(w(8, 6), 2 * g(8, 6));
  EXPECT_EQ(w(1, 0), 0);
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
  const WeightPlan plan = plan_weight(spec, false);
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
  refused("svd", "\"svd\" exists already");
  refused("every_kth_row", "exists already");
  refused("galore", "exists already");
  refused("auto", "not \"auto\"");
  refused("", "expected 1 to 16 characters");
  refused("a_name_of_17_char", "expected 1 to 16 characters");
  CodecFamily hollow = every_kth_row();
  hollow.name = "hollow";
  hollow.make = nullptr;
  EXPECT_THAT([&] { register_codec(hollow); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no core or no make")));
}

TEST(CodecFamiliesTest, BuiltInRowsSayWhatTheirCodecsAre) {
  Budget budget = unlimited();
  for (const CodecFamily* family : codec_families()) {
    if (family->name == "every_kth_row") continue;
    const auto codec =
        make_codec({.name = family->name}, 64, 48, kWeight, DeviceId::host(), budget);
    EXPECT_EQ(codec->learns(), family->learns) << family->name;
    EXPECT_EQ(family->offered, family->name != "galore" && family->name != "topk_columns");
    // 1/f is the scale of orthonormal columns; identity and none have no need of it.
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
