// Computes the memory of an arena without making one.
//
// Errors: as in ArenaPlan.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/zo/arena_plan.h"

namespace sluiceway {

struct ArenaFootprint {
  std::uint64_t base_bytes = 0;     // All weights, in whole blocks: read in a pass over them.
  std::uint64_t store_bytes = 0;    // On disk: the base, and room for the next one beside it.
  std::uint64_t table_bytes = 0;    // Host memory while the arena is open,
  std::uint64_t pass_bytes = 0;     // and more while a new base is made.
  std::uint64_t largest_bytes = 0;  // The largest weight; needed to hold one whole.
};

ArenaFootprint arena_footprint(std::vector<ArenaWeight> weights, std::uint64_t chunk_bytes);

}  // namespace sluiceway
