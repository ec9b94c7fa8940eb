#include "runtime/engine/offload/chunk_groups.h"

#include <cstddef>

namespace sluiceway {

ChunkGroups::ChunkGroups(const ChunkPlan& plan, int tensor_count)
    : of_tensor_(static_cast<std::size_t>(tensor_count), -1), of_chunk_(plan.chunks().size(), -1) {
  // Goes in order of the tensors, so that a lower group is needed earlier. A chunk has either
  // pieces of one large tensor or all of several small ones, so its first tensor decides.
  for (int tensor = 0; tensor < tensor_count; ++tensor) {
    const int first = of_chunk_[static_cast<std::size_t>(plan.of_tensor(tensor).front())];
    const int group = first >= 0 ? first : count_++;
    of_tensor_[static_cast<std::size_t>(tensor)] = group;
    for (const int chunk : plan.of_tensor(tensor)) {
      of_chunk_[static_cast<std::size_t>(chunk)] = group;
    }
  }
}

}  // namespace sluiceway
