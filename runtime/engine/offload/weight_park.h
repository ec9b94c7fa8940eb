// Parks new weights in host memory until the device may have them.
//
// The same chunks have room in every step: the first chunks of the forward, as many as fit.
//
// Ownership: one buffer of tier kHost, reserved at construction: at most `most` bytes, and no more
//            than the budget has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class WeightPark {
 public:
  // `weights`: types of the tensors, in order. `away`: 1 for those that need no room.
  WeightPark(Budget& budget, const ChunkPlan& plan, std::span<const DType> weights,
             std::span<const std::uint8_t> away, std::uint64_t most);

  struct Fit {
    std::uint64_t bytes = 0;
    std::size_t chunks = 0;  // The first chunks of the plan.
  };
  // Returns what fits into `room` bytes.
  static Fit fit(const ChunkPlan& plan, std::span<const DType> weights,
                 std::span<const std::uint8_t> away, std::uint64_t room);

  bool has_room(int chunk) const { return !pieces_.at(static_cast<std::size_t>(chunk)).empty(); }
  // Memory of piece `piece` of a chunk that has room.
  std::span<std::byte> of(int chunk, std::size_t piece) const {
    return pieces_.at(static_cast<std::size_t>(chunk)).at(piece);
  }

 private:
  Buffer memory_;
  std::vector<std::vector<std::span<std::byte>>> pieces_;  // By chunk; empty: no room.
};

}  // namespace sluiceway
