#include "runtime/engine/offload/state_places.h"

#include <algorithm>

namespace sluiceway {

StatePlaces::StatePlaces(const ChunkPlan& plan, StateCodec codec, std::span<const DType> weights,
                         std::span<const Streamed> streamed) {
  for (const PlannedChunk& chunk : plan.chunks()) {
    const StateForm form(codec, chunk, weights, streamed);
    places_.push_back(all_);
    all_.state_bytes += form.bytes() - form.weight_bytes();
    all_.weight_bytes += form.weight_bytes();
    if (form.weight_bytes() > 0) ++all_.weight;
    widest_weight_ = std::max<std::uint64_t>(widest_weight_, form.weight_bytes());
    if (form.is_frozen()) continue;
    ++all_.trained;
    all_.elems += static_cast<std::size_t>(chunk.stored_elems);
    widest_part_ = std::max<std::uint64_t>(widest_part_, form.part_bytes());
  }
}

}  // namespace sluiceway
