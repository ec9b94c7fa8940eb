// AdamW over states that lie in a store: fetch a chunk, one pass, store it beside the last commit.
//
//   lane    work on one chunk
//   fetch   reads exp_avg, exp_avg_sq and master of the last commit, and the gradient's extents
//   host    g <- sum of the extents; AdamW in place; emits the weight that the model computes with
//   store   writes the three to the slots that the last commit does not hold
//
// Memory of a chunk is one lease of the ring, from its fetch until it is stored: what the host
// holds is the ring, whatever the size of the model. Extents are summed tile by tile in the cache,
// in f32, in order of the micro-batches: no f32 gradient is ever in memory.
//
//   stream         chunk of the state region     bytes of an element
//   exp_avg        3 c                           4
//   exp_avg_sq     3 c + 1                       4
//   master         3 c + 2                       4
//   gradient       c, of the gradient region     2 or 4, each extent
//
// Lifetime:      store, ring and plan outlive the payloads.
// Thread safety: update() and write_initial() from one thread; payloads run in the lanes.
// Errors:        a hop ends with what its request says: Corrupt, IoError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/adam.h"
#include "kernels/base/dtype.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/schedule/hop.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {

inline constexpr int kStateStreams = 3;

// What one chunk's update is made with.
struct ChunkUpdate {
  // Takes the weight of a piece as the model computes with it, in `weight_dtype`; called in the
  // host lane, the memory belongs to the call.
  using Emit = std::function<void(const ChunkPiece&, std::span<const std::byte>)>;

  std::vector<AdamHyper> hypers;  // One a piece.
  float grad_scale = 1;
  int extents = 1;  // Micro-batches.
  Emit emit;
};

class StateStream {
 public:
  struct Lanes {
    LaneId fetch = 0, host = 1, store = 2;
  };
  struct Types {
    DType gradient = DType::kBF16;  // f32, f16 or bf16.
    DType weight = DType::kBF16;    // What is emitted; f32 is the master itself.
  };

  // Regions that a store needs for a plan: state, with `slots`, and extents of `micro_batches`.
  static std::vector<RegionSpec> regions(const ChunkPlan& plan, DType gradient, std::uint32_t slots,
                                         std::uint32_t micro_batches);
  static constexpr std::uint32_t kStateRegion = 0, kGradientRegion = 1;

  StateStream(ChunkStore& store, PinnedPool& ring, const ChunkPlan& plan, Lanes lanes, Types types);

  // Zero moments and masters, chunk by chunk; `fill` writes the masters of a piece. Not committed.
  void write_initial(const std::function<void(const ChunkPiece&, std::span<float>)>& fill);

  // The hops that update chunk `chunk`; the caller adds key, deadline and further hops.
  Payload update(int chunk, ChunkUpdate update);

  // Least bytes of the ring with which one chunk can be updated.
  static std::size_t ring_bytes(const ChunkPlan& plan, Types types, int extents);

 private:
  struct Job;

  void fetch(const std::shared_ptr<Job>& job, HopDone done);
  void compute(Job& job) const;
  void store(const std::shared_ptr<Job>& job, HopDone done);
  PinnedPool::Lease lease(const PlannedChunk& chunk, int extents);

  ChunkStore& store_;
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  Lanes lanes_;
  Types types_;
};

}  // namespace sluiceway
