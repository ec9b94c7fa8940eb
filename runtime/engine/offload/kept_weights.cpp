#include "runtime/engine/offload/kept_weights.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace sluiceway {

KeptWeights::Room KeptWeights::room_for(const ChunkPlan& plan, const StateStream::Types& types,
                                        const std::vector<std::vector<int>>& blocks, int count) {
  Room room;
  std::vector<std::uint64_t> chunks_of;  // By block.
  for (const std::vector<int>& block : blocks) {
    std::uint64_t& chunks = chunks_of.emplace_back();
    for (const int tensor : block) {
      for (const int chunk : plan.of_tensor(tensor)) {
        const PlannedChunk& planned = plan.chunks()[static_cast<std::size_t>(chunk)];
        const StateForm form(types.codec, planned, types.weights, types.streamed);
        if (!form.updates_read_weight()) continue;
        const std::size_t bytes = form.bytes_of(form.weight_part());
        room.chunk_bytes = std::max<std::uint64_t>(room.chunk_bytes, bytes);
        room.spares += bytes;
        ++chunks;
      }
    }
  }
  for (std::size_t first = 0; first < chunks_of.size(); ++first) {
    std::uint64_t together = 0;
    const std::size_t end = std::min(first + static_cast<std::size_t>(count), chunks_of.size());
    for (std::size_t block = first; block < end; ++block) together += chunks_of[block];
    room.chunks = std::max(room.chunks, together);
  }
  return room;
}

KeptWeights::KeptWeights(Budget& budget, const Room& room)
    : chunk_bytes_(room.chunk_bytes),
      memory_(budget, Tier::kHost, DeviceId::host(), room.bytes(), "weights kept for their updates",
              Fill::kNone) {
  for (std::uint64_t i = 0; i < room.chunks; ++i) {
    free_.push_back(memory_.as<std::byte>().data() + i * chunk_bytes_);
  }
}

void KeptWeights::put(int chunk, std::span<const std::byte> weight) {
  SLUICEWAY_CHECK(weight.size() <= chunk_bytes_, "KeptWeights: chunk ", chunk, " has ",
                  weight.size(), " bytes, expected at most ", chunk_bytes_);
  std::byte* place = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, chunk, &Place::chunk);
    if (found != kept_.end()) {
      place = found->data;
      kept_.erase(found);
    } else if (!free_.empty()) {
      place = free_.back();
      free_.pop_back();
    } else if (!kept_.empty()) {
      place = kept_.front().data;
      kept_.pop_front();
    } else {
      return;
    }
  }
  std::ranges::copy(weight, place);
  const std::lock_guard lock(mutex_);
  kept_.push_back({chunk, pass(), place});
}

bool KeptWeights::take(int chunk, std::uint64_t pass, std::span<std::byte> into) {
  std::byte* place = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(kept_, chunk, &Place::chunk);
    if (found == kept_.end() || found->pass != pass) return false;
    place = found->data;
    kept_.erase(found);
  }
  std::ranges::copy(std::span(place, into.size()), into.begin());
  const std::lock_guard lock(mutex_);
  free_.push_back(place);
  return true;
}

}  // namespace sluiceway
