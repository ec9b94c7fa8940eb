// block_random: blocks drawn from the seed, so that there is nothing to learn and nothing to store.
#include "compress/block_codec.h"
#include "compress/builtin_families.h"

namespace sluiceway {

CodecFamily block_random_family() {
  return block_family("block_random", {grouped_layouts, nullptr});
}

}  // namespace sluiceway
