// The codec of all block families: groups of rows, each turned by a block with orthonormal columns.
//
// A family is a layout and a fit; one without a fit is drawn from the seed and has nothing to
// store.
//
// P^T P = I and Q^T Q = I, so P P^T keeps the share dm / m of a random direction's energy. An
// update of the core with elements of size 1 becomes one of size sqrt(dm dn / (m n)) = f on the
// weight; default_scale() is the inverse, 1/f, exactly where the groups divide the weight.
#pragma once

#include <string>

#include "compress/codec_families.h"
#include "compress/projector.h"

namespace sluiceway {

struct BlockRecipe {
  BlockLayouts (*layouts)(const CodecConfig& config, std::int64_t m, std::int64_t n);
  // Overwrites all of P and Q. `seed` keys what is random in it. Null: drawn from the seed.
  void (*fit)(BlockProjector& to, const AnyMatrix& g, ProjectorLearner& learner, std::uint64_t seed,
              StreamRef stream);
  // Whether all memory of a fit is that of the codec's device, where the learner works, or the
  // host's, in copies.
  bool by_learner = false;
};

// A whole row but for `offered`, which is true; the columns are orthonormal.
CodecFamily block_family(std::string name, BlockRecipe recipe);

// Groups of config.block rows on both sides.
BlockLayouts grouped_layouts(const CodecConfig& config, std::int64_t m, std::int64_t n);

// One group on each projected side, unit blocks on another. A one-sided pair keeps ratio^2 of its
// side: a core of the same size.
BlockLayouts dense_layouts(bool rows, bool columns, const CodecConfig& config, std::int64_t m,
                           std::int64_t n);

}  // namespace sluiceway
