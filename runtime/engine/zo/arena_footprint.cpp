#include "runtime/engine/zo/arena_footprint.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "runtime/engine/zo/arena_pass.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {

ArenaFootprint arena_footprint(std::vector<ArenaWeight> weights, std::uint64_t chunk_bytes) {
  const ArenaPlan plan(std::move(weights), chunk_bytes);
  const Layout layout = new_layout(plan.contents(), {1});
  ArenaFootprint found{.store_bytes = layout.drives.front().bytes,
                       .table_bytes = ChunkStore::table_bytes(layout),
                       .pass_bytes = pass_bytes(plan)};
  for (std::size_t w = 0; w < plan.weights().size(); ++w) {
    found.base_bytes += plan.stored_bytes(w);
    found.largest_bytes = std::max(found.largest_bytes, plan.stored_bytes(w));
  }
  return found;
}

}  // namespace sluiceway
