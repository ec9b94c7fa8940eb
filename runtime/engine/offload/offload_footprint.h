// Computes the memory that the offload engine takes on each tier for a model, without making
// anything.
//
// Errors: OutOfMemory, with both byte counts: the pinned tier has no room for two chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/core_footprint.h"
#include "runtime/engine/offload/kept_weights.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/memory/budget.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {

// Returns the bytes of the ring that chunks pass through, as whole huge pages. `limit` is the size
// of the pinned tier, which also holds the gradients of small tensors and `landing` bytes of cores;
// the ring has as many chunks as fit beside them, with extents of `micro_batches`.
std::size_t offload_ring_bytes(const ChunkPlan& plan, StateStream::Types types, int micro_batches,
                               std::uint64_t limit, std::uint64_t landing = 0);

inline constexpr std::uint32_t kStateSlots = 2;  // In a new store; a pin adds a third.

// Returns the copies of every state in a new store; one is changed in place (state_stream.h).
constexpr std::uint32_t state_slots(UpdatePolicy policy, bool in_memory) noexcept {
  return in_memory && policy == UpdatePolicy::kSpill ? 1 : kStateSlots;
}

// Returns the contents of a new store, without a catalogue.
Contents state_contents(const ChunkPlan& plan, const StateStream::Types& types, std::uint32_t slots,
                        std::uint32_t micro_batches);
// Returns those of the store on drives beside one that changes in place; no regions: none is
// needed.
Contents overflow_contents(const ChunkPlan& plan, const StateStream::Types& types,
                           std::uint32_t micro_batches);

// Returns the host memory for chunks that change in place: what `limit` leaves beside the rest that
// is there, which includes `core_bytes` of arrived cores. `types` says nothing of it yet.
InPlace in_place_within(std::uint64_t limit, std::span<const TensorSpec> tensors,
                        const ChunkPlan& plan, StateStream::Types types,
                        std::uint32_t micro_batches, std::uint64_t core_bytes);

struct OffloadFootprint {
  std::uint64_t pinned_bytes = 0;    // Ring, gradients of small tensors, arriving cores.
  std::uint64_t store_bytes = 0;     // On the drive, or in host memory in its place.
  std::uint64_t overflow_bytes = 0;  // On the drive, beside a store in host memory.
  std::uint64_t table_bytes = 0;     // Host memory for the tables of the stores.
  std::int64_t stored_elems = 0;     // Elements of one micro-batch's extents.
  std::uint64_t state_bytes = 0;     // A step reads and writes them,
  std::uint64_t copied_bytes = 0;    // and writes these copies of streamed weights.
  double drive_share = 0;            // The part of all chunks, by their bytes, on a drive.
  CoreFootprint cores;
  std::uint64_t parked_bytes = 0;  // Host memory for weights that wait for a step's decision.
  std::uint64_t reread_bytes = 0;  // Masters read after the step for lack of such memory.
  std::uint64_t exit_bytes = 0;    // Device: for rounding, scanning and crossing of gradients.
};

// Inputs beside the tensors.
struct FootprintRequest {
  DType gradient = DType::kBF16;
  std::int64_t chunk_elems = ChunkPlan::kChunkElems;
  int micro_batches = 1;
  std::uint32_t slots = kStateSlots;                  // For every state; 1: changed in place,
  std::uint64_t in_place_limit = Budget::kUnlimited;  // in a host tier of this size.
  std::uint64_t pinned_limit = Budget::kUnlimited;
  CoreOptions cores;
  UpdatePolicy policy = UpdatePolicy::kSpill;
  std::uint64_t park_room = 0;         // Limit for parked weights.
  DeviceId device = DeviceId::host();  // Any CUDA device number stands for all.
  StateCodec codec = StateCodec::kFp32;
};

OffloadFootprint offload_footprint(std::span<const TensorSpec> tensors,
                                   const FootprintRequest& request);

// Returns the host memory in which OffloadEngine::stream() keeps weights for their updates, if the
// budget has room for it, with kSpeculative and drives.
KeptWeights::Room kept_room(std::span<const TensorSpec> tensors,
                            const std::vector<std::vector<int>>& blocks, int ahead,
                            std::int64_t chunk_elems, StateCodec codec);

}  // namespace sluiceway
