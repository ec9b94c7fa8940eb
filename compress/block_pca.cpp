// block_pca: each group's leading directions in one calibration gradient.
#include "compress/block_codec.h"
#include "compress/block_fit.h"
#include "compress/builtin_families.h"

namespace sluiceway {
namespace {

void fit(BlockProjector& to, const AnyMatrix& g, ProjectorLearner& /*learner*/,
         std::uint64_t /*seed*/, StreamRef /*stream*/) {
  fit_block_pca(g, Side::kRows, to.p(), to.p_value());
  fit_block_pca(g, Side::kColumns, to.q(), to.q_value());
}

}  // namespace

CodecFamily block_pca_family() { return block_family("block_pca", {grouped_layouts, fit}); }

}  // namespace sluiceway
