// What the offload engine takes of each tier for a model, nothing being made.
//
// Errors: OutOfMemory, with both byte counts: a pinned tier without room for two chunks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/base/dtype.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/core_footprint.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/memory/budget.h"
#include "runtime/store/layout.h"

namespace sluiceway {

// Bytes of the ring that chunks pass through, whole huge pages: as many chunks as the pinned tier,
// which may hold `limit`, has room for beside the gradients of small tensors and `landing` bytes of
// cores; with extents of `micro_batches`.
std::size_t offload_ring_bytes(const ChunkPlan& plan, StateStream::Types types, int micro_batches,
                               std::uint64_t limit, std::uint64_t landing = 0);

inline constexpr std::uint32_t kStateSlots = 2;  // Of a new store; a pin adds a third.

// Of a store on one drive, without a catalogue.
Layout state_layout(const ChunkPlan& plan, DType gradient, std::uint32_t slots,
                    std::uint32_t micro_batches);

struct OffloadFootprint {
  std::uint64_t pinned_bytes = 0;  // Ring, gradients of small tensors, and what cores arrive in.
  std::uint64_t store_bytes = 0;   // Of the drive, or of host memory in its place.
  std::uint64_t table_bytes = 0;   // Host memory of the tables of the store.
  std::int64_t stored_elems = 0;   // Of each stream: what a step reads and writes.
  CoreFootprint cores;
  std::uint64_t parked_bytes = 0;  // Host memory of weights that wait for the decision of a step.
  std::int64_t reread_elems = 0;   // Of masters that are read after it for want of such memory.
  std::uint64_t exit_bytes = 0;    // Device: what gradients need to be rounded, scanned, to cross.
};

// What it depends on beside the tensors.
struct FootprintRequest {
  DType gradient = DType::kBF16;
  std::int64_t chunk_elems = ChunkPlan::kChunkElems;
  int micro_batches = 1;
  std::uint32_t slots = kStateSlots;  // Of every state.
  std::uint64_t pinned_limit = Budget::kUnlimited;
  CoreOptions cores;
  UpdatePolicy policy = UpdatePolicy::kSpill;
  std::uint64_t park_room = 0;         // Most that weights may take that wait.
  DeviceId device = DeviceId::host();  // Any CUDA device, there or not, stands for the others.
};

OffloadFootprint offload_footprint(std::span<const TensorSpec> tensors,
                                   const FootprintRequest& request);

}  // namespace sluiceway
