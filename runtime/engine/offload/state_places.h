// Where the chunks of a plan lie in the regions of a store: states, extents of gradients, and
// weights that are streamed.
//
//   on drives    a region has a chunk for each of the plan that has something there, in their order
//   in place     each region is one chunk of host memory, in which these lie side by side
//
// A frozen tensor has a weight, and neither states nor extents. If host memory has no room for all
// chunks in place, the others are on drives. The two kinds alternate in the order of the plan, so
// that drives work during the whole of a step.
//
// Thread safety: immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/state_form.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

struct ChunkPlaces {
  std::uint64_t trained = 0;     // Number of earlier chunks that have states and extents,
  std::uint64_t weight = 0;      // and that have a part for the weight alone.
  std::size_t elems = 0;         // Elements of the extents of earlier chunks,
  std::size_t state_bytes = 0;   // bytes of their states,
  std::size_t weight_bytes = 0;  // and of their weights.
};

// Host memory for chunks that change in place.
struct InPlace {
  static constexpr std::uint64_t kAll = Budget::kUnlimited;

  std::uint64_t bytes = 0;  // Of states, weights and extents; 0: no chunk is in place.
  int extents = 1;          // Of each chunk.

  bool any() const noexcept { return bytes > 0; }
};

class StatePlaces {
 public:
  StatePlaces(const ChunkPlan& plan, StateCodec codec, std::span<const DType> weights,
              std::span<const Streamed> streamed, DType gradient, const InPlace& in_place);

  bool in_place(int chunk) const { return in_place_.at(static_cast<std::size_t>(chunk)); }
  // Counts of the earlier chunks that are in place, or on drives, as this one is.
  const ChunkPlaces& of(int chunk) const { return places_.at(static_cast<std::size_t>(chunk)); }
  const ChunkPlaces& all_in_place() const noexcept { return all_in_place_; }
  const ChunkPlaces& all_on_drives() const noexcept { return all_on_drives_; }
  std::uint64_t widest_part() const noexcept { return widest_part_; }      // Of states on drives,
  std::uint64_t widest_weight() const noexcept { return widest_weight_; }  // and of weights there.

 private:
  std::vector<ChunkPlaces> places_;
  std::vector<bool> in_place_;
  ChunkPlaces all_in_place_, all_on_drives_;
  std::uint64_t widest_part_ = 0, widest_weight_ = 0;
};

}  // namespace sluiceway
