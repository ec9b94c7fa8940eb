// Keeps fetched weights in host memory for their updates, which then read only moments and masters.
//
// Where the master holds the bits of a streamed weight (state_form.h), an update reads what the
// backward has fetched shortly before. With updates in the backward it is at most a few blocks
// behind, so that much memory saves the second read: 2 bytes a parameter with bf16 weights, of 16
// with `bf16` states and of 14 with `8bit`. The oldest weight makes room for a new one; an update
// that finds none reads it from the drive. Weights change between passes only, so an update takes
// none of another pass than the one in which it was submitted.
//
// Ownership:     one buffer of tier kHost, reserved at construction.
// Thread safety: any thread calls; a copy holds no lock.
// Errors:        OutOfMemory of the budget.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class KeptWeights {
 public:
  struct Room {
    std::uint64_t chunk_bytes = 0;  // Of a place, for any chunk.
    std::uint64_t chunks = 0;       // Number of places.
    std::uint64_t spares = 0;       // Bytes that the updates of a step need not read.
    std::uint64_t bytes() const noexcept { return chunks * chunk_bytes; }
  };
  // Returns how many blocks may wait, where a fetch is `ahead` blocks before its use: updates are
  // about one block behind the backward.
  static constexpr int blocks(int ahead) noexcept { return ahead + 2; }
  // Returns what any `count` consecutive blocks need; `blocks` are numbers of their tensors.
  static Room room_for(const ChunkPlan& plan, const StateStream::Types& types,
                       const std::vector<std::vector<int>>& blocks, int count);

  KeptWeights(Budget& budget, const Room& room);

  void begin_pass() noexcept { ++pass_; }  // After all reads of the last one have ended.
  std::uint64_t pass() const noexcept { return pass_; }
  // Keeps the stored weight of a chunk, read in this pass; not while copies hold all places.
  void put(int chunk, std::span<const std::byte> weight);
  // Copies the weight of a chunk as it was in a pass, and forgets it. False: it is not here.
  bool take(int chunk, std::uint64_t pass, std::span<std::byte> into);

 private:
  struct Place {
    int chunk = 0;
    std::uint64_t pass = 0;
    std::byte* data = nullptr;
  };

  std::uint64_t chunk_bytes_;
  Buffer memory_;
  std::atomic<std::uint64_t> pass_ = 0;
  std::mutex mutex_;
  std::vector<std::byte*> free_;
  std::deque<Place> kept_;  // The oldest first.
};

}  // namespace sluiceway
