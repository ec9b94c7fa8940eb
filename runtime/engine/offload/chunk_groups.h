// Groups tensors that the forward waits for together: tensors that share a chunk, and all chunks of
// a tensor.
//
// A group has two keys of the executor: update(group) for payloads that change its tensors, and
// spill(group) for gradients on their way to its extents.
#pragma once

#include <vector>

#include "runtime/engine/offload/chunk_plan.h"

namespace sluiceway {

class ChunkGroups {
 public:
  ChunkGroups(const ChunkPlan& plan, int tensor_count);

  int count() const noexcept { return count_; }
  int tensor_count() const noexcept { return static_cast<int>(of_tensor_.size()); }
  int key_count() const noexcept { return 2 * count_; }
  int of_tensor(int tensor) const { return of_tensor_.at(static_cast<std::size_t>(tensor)); }
  int of_chunk(int chunk) const { return of_chunk_.at(static_cast<std::size_t>(chunk)); }
  int update(int group) const noexcept { return group; }
  int spill(int group) const noexcept { return count_ + group; }

 private:
  int count_ = 0;
  std::vector<int> of_tensor_, of_chunk_;
};

}  // namespace sluiceway
