// topk_columns: the columns with the largest norms, all rows; a baseline of the experiments.
#include "compress/block_codec.h"
#include "compress/block_fit.h"
#include "compress/builtin_families.h"

namespace sluiceway {
namespace {

BlockLayouts columns_only(const CodecConfig& config, std::int64_t m, std::int64_t n) {
  return dense_layouts(false, true, config, m, n);
}

void fit(BlockProjector& to, const AnyMatrix& g, ProjectorLearner& /*learner*/,
         std::uint64_t /*seed*/, StreamRef /*stream*/) {
  fill_unit_blocks(to.p(), to.p_value());
  fit_top_columns(g, to.q(), to.q_value());
}

}  // namespace

CodecFamily topk_columns_family() {
  CodecFamily family = block_family("topk_columns", {columns_only, fit});
  family.offered = false;
  return family;
}

}  // namespace sluiceway
