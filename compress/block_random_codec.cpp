// The family "block_random": groups of rows, each turned by its own random orthonormal block.
//
// P^T P = I and Q^T Q = I, so P P^T keeps the share dm / m of a random direction's energy. An
// update of the core with elements of size 1 becomes one of size sqrt(dm dn / (m n)) = f on the
// weight; default_scale() is the inverse, 1/f, exactly where the groups divide the weight.
#include <algorithm>
#include <cmath>

#include "compress/codec_families.h"
#include "compress/codec_state.h"
#include "kernels/compress.h"

namespace sluiceway {
namespace {

class BlockRandomCodec final : public GradientCodec {
 public:
  BlockRandomCodec(const CodecRequest& request, Budget& budget)
      : projector_(request.m, request.n, request.config.block, request.config.ratio,
                   {request.config.seed, 0, request.weight_hash}, budget) {
    const ProjectorDims& dims = projector_.dims();
    header_.set_family(name());
    header_.seed = request.config.seed;
    header_.weight_hash = request.weight_hash;
    header_.m = dims.m;
    header_.n = dims.n;
    header_.dm = dims.dm;
    header_.dn = dims.dn;
    header_.nnz = request.config.block;
  }

  std::string_view name() const noexcept override { return "block_random"; }
  CoreShape core() const noexcept override { return {header_.dm, header_.dn}; }
  float default_scale() const noexcept override {
    const double kept = static_cast<double>(header_.dm) / static_cast<double>(header_.m) *
                        static_cast<double>(header_.dn) / static_cast<double>(header_.n);
    return static_cast<float>(1 / std::sqrt(kept));
  }
  bool learns() const noexcept override { return false; }
  std::uint64_t generation() const noexcept override { return 0; }

  std::size_t scratch_elems() const noexcept override {
    const BlockRows p = projector_.p(), q = projector_.q();
    return static_cast<std::size_t>(
        std::max({compress_scratch_elems(p, q), decompress_scratch_elems(p, q),
                  bias_norm_scratch_elems(p, q)}));
  }

  void compress(const AnyMatrix& g, float beta, MatrixView<float> s, std::span<float> scratch,
                StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::compress(s, beta, g, projector_.p(), projector_.q(), scratch);
  }

  void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
             const WeightUpdate& update, std::span<float> scratch,
             StreamRef stream) const override {
    require_host_stream(stream, name());
    cpu::decompress(w, low, d, projector_.p(), projector_.q(), update, scratch);
  }

  BiasNorm bias(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) const override {
    require_host_stream(stream, name());
    return cpu::bias_norm(g, projector_.p(), projector_.q(), scratch);
  }

  RefreshOutcome refresh(const AnyMatrix& /*g*/, const RefreshOptions& /*options*/,
                         ProjectorLearner& /*learner*/, const Moments& /*moments*/,
                         StreamRef /*stream*/) override {
    return {};
  }

  std::vector<std::byte> save() const override { return write_codec_state(header_, {}, {}); }
  void load(std::span<const std::byte> state) override { read_codec_state(state, header_); }

 private:
  BlockProjector projector_;
  CodecStateHeader header_;
};

}  // namespace

std::unique_ptr<GradientCodec> make_block_random(const CodecRequest& request, Budget& budget) {
  return std::make_unique<BlockRandomCodec>(request, budget);
}

}  // namespace sluiceway
