#include "compress/block_codec.h"

#include <algorithm>
#include <utility>

#include "compress/check_config.h"
#include "compress/orthonormal_scale.h"
#include "compress/projected_codec.h"
#include "kernels/base/check.h"
#include "kernels/compress.h"
#include "runtime/device/stream.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kUnitBlock = 32;  // Any size would do; the kernels handle this one well.

// One group; a gradient has at most as many directions as its shorter side is long.
BlockRows dense_layout(std::int64_t rows, std::int64_t other, double ratio) {
  BlockRows layout = block_layout(rows, rows, ratio);
  layout.kept = layout.last_kept = layout.cols = std::min(layout.kept, other);
  return layout;
}

class BlockCodec final : public ProjectedCodec<BlockProjector> {
 public:
  BlockCodec(const CodecRequest& request, BlockRecipe recipe)
      : BlockCodec(request, recipe, recipe.layouts(request.config, request.m, request.n)) {}

  float default_scale() const noexcept override { return orthonormal_scale(projector_.dims()); }
  bool wants_calibration() const noexcept override { return learns() && generation() == 0; }
  std::size_t scratch_elems() const noexcept override { return layouts_.scratch_elems(); }
  std::size_t range_scratch_elems() const noexcept override {
    return layouts_.range_scratch_elems();
  }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> scratch,
                StreamRef stream) const override {
    sluiceway::compress(s, beta, g, projector_.p(), projector_.q(), scratch, stream);
  }

  void load(std::span<const std::byte> state) override {
    const CodecState stored = read_codec_state(state, header_);
    if (!learns()) return;
    projector_.restore(stored.values);
    set_generation(stored.header.generation);
  }

 protected:
  BiasNorm measure_bias(const AnyMatrix& g, std::span<float> scratch,
                        StreamRef stream) const override {
    return result().of<BiasNorm>(stream, [&](BiasNorm* to) {
      bias_norm(to, g, projector_.p(), projector_.q(), scratch, stream);
    });
  }

  std::size_t kept_elems() const noexcept override { return learns() ? layouts_.elems() : 0; }
  int fit(const AnyMatrix& g, const RefreshOptions& /*options*/, ProjectorLearner& learner,
          StreamRef stream) override {
    const std::uint64_t seed = header_.seed ^ header_.weight_hash;
    if (recipe_.by_learner) {
      wait_for(stream);
      recipe_.fit(projector_, g, learner, seed, stream);
      return 0;
    }
    const HostMatrix here(g, stream, projector_.home().budget());
    edit(projector_, [&](BlockProjector& to) {
      recipe_.fit(to, here.view(), learner, seed, StreamRef::host());
    });
    return 0;
  }

 private:
  BlockCodec(const CodecRequest& request, BlockRecipe recipe, const BlockLayouts& layouts)
      : ProjectedCodec(request, layouts.p.block, layouts, request.device, request.budget),
        recipe_(recipe),
        layouts_(layouts) {
    if (recipe_.fit == nullptr) {
      projector_.draw({header_.seed, 0, header_.weight_hash, request.config.q_hash});
    } else {
      save_values();
    }
  }

  BlockRecipe recipe_;
  BlockLayouts layouts_;
};

}  // namespace

BlockLayouts grouped_layouts(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return {block_layout(m, config.block, config.ratio), block_layout(n, config.block, config.ratio)};
}

BlockLayouts dense_layouts(bool rows, bool columns, const CodecConfig& config, std::int64_t m,
                           std::int64_t n) {
  const double ratio = rows && columns ? config.ratio : config.ratio * config.ratio;
  return {rows ? dense_layout(m, n, ratio) : block_layout(m, kUnitBlock, 1.0),
          columns ? dense_layout(n, m, ratio) : block_layout(n, kUnitBlock, 1.0)};
}

CodecFamily block_family(std::string name, BlockRecipe recipe) {
  const auto layouts = recipe.layouts;
  CodecFamily family;
  family.name = std::move(name);
  family.offered = true;
  family.learns = recipe.fit != nullptr;
  family.complement = Complement::kAlways;
  family.check = [](const CodecConfig& config, std::int64_t, std::int64_t) {
    check_ratio(config);
    SLUICEWAY_CHECK(config.block > 0 && config.block <= kMaxBlock, "codec: block is ", config.block,
                    " rows, expected 1 to ", kMaxBlock);
  };
  family.core = [layouts](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    const BlockLayouts pair = layouts(config, m, n);
    return CoreShape{pair.p.cols, pair.q.cols};
  };
  family.projector_bytes = [layouts](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return layouts(config, m, n).bytes();
  };
  family.scratch_elems = [layouts](const CodecConfig& config, std::int64_t m, std::int64_t n) {
    return layouts(config, m, n).scratch_elems();
  };
  family.range_scratch_elems = [layouts](const CodecConfig& config, std::int64_t m,
                                         std::int64_t n) {
    return layouts(config, m, n).range_scratch_elems();
  };
  family.project_scratch_elems = [layouts](const CodecConfig& config, std::int64_t m,
                                           std::int64_t n) {
    return layouts(config, m, n).project_scratch_elems();
  };
  if (family.learns) {
    family.kept_elems = [layouts](const CodecConfig& config, std::int64_t m, std::int64_t n) {
      return layouts(config, m, n).elems();
    };
  }
  family.make = [recipe](const CodecRequest& request) {
    return std::make_unique<BlockCodec>(request, recipe);
  };
  return family;
}

}  // namespace sluiceway
