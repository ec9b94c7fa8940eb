// Where the chunks of a plan lie in the regions of a store: states, extents of gradients, and
// weights that are streamed.
//
//   on drives    a region has a chunk for each of the plan that has something there, in their order
//   in place     each region is one chunk of host memory, in which these lie side by side
//
// A frozen tensor has a weight, and neither states nor extents.
//
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/state_form.h"

namespace sluiceway {

struct ChunkPlaces {
  std::uint64_t trained = 0;     // Number of earlier chunks that have states and extents,
  std::uint64_t weight = 0;      // and that have a part for the weight alone.
  std::size_t elems = 0;         // Elements of the extents of earlier chunks,
  std::size_t state_bytes = 0;   // bytes of their states,
  std::size_t weight_bytes = 0;  // and of their weights.
};

class StatePlaces {
 public:
  StatePlaces(const ChunkPlan& plan, StateCodec codec, std::span<const DType> weights,
              std::span<const Streamed> streamed);

  const ChunkPlaces& of(int chunk) const { return places_.at(static_cast<std::size_t>(chunk)); }
  const ChunkPlaces& all() const noexcept { return all_; }                 // Counts of all chunks.
  std::uint64_t widest_part() const noexcept { return widest_part_; }      // Of states,
  std::uint64_t widest_weight() const noexcept { return widest_weight_; }  // and of weights.

 private:
  std::vector<ChunkPlaces> places_;
  ChunkPlaces all_;
  std::uint64_t widest_part_ = 0, widest_weight_ = 0;
};

}  // namespace sluiceway
