// The codec of all block families: groups of rows, each projected by a block with orthonormal
// columns.
//
// A family is a layout and a fit; a family without a fit draws its blocks from the seed and stores
// nothing.
//
// P^T P = I and Q^T Q = I, so P P^T keeps the share dm / m of a random direction's energy. An
// update of the core with elements of size 1 becomes an update of size sqrt(dm dn / (m n)) = f of
// the weight; default_scale() is the inverse, 1/f, exact if the groups divide the weight.
#pragma once

#include <string>

#include "compress/codec_families.h"
#include "compress/projector.h"

namespace sluiceway {

struct BlockRecipe {
  BlockLayouts (*layouts)(const CodecConfig& config, std::int64_t m, std::int64_t n);
  // Overwrites all of P and Q. `seed` keys its random parts. Null: the seed alone draws the blocks.
  void (*fit)(BlockProjector& to, const AnyMatrix& g, ProjectorLearner& learner, std::uint64_t seed,
              StreamRef stream);
  // True: a fit uses memory of the codec's device only, where the learner works. False: it uses
  // copies in host memory.
  bool by_learner = false;
};

// Returns a complete row except for `offered`, which is true; the columns are orthonormal.
CodecFamily block_family(std::string name, BlockRecipe recipe);

// Groups of config.block rows on both sides.
BlockLayouts grouped_layouts(const CodecConfig& config, std::int64_t m, std::int64_t n);

// One group on each projected side, unit blocks on the other. A one-sided pair keeps ratio^2 of its
// side, so its core has the same size.
BlockLayouts dense_layouts(bool rows, bool columns, const CodecConfig& config, std::int64_t m,
                           std::int64_t n);

}  // namespace sluiceway
