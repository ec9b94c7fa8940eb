// Says which gradients cross the link as cores, and computes the memory this takes on each tier,
// without making anything.
//
// Errors: InvalidArgument: a codec that draws no projectors from a seed, or an unsupported wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "compress/gradient_codec.h"
#include "kernels/base/dtype.h"
#include "kernels/wire.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/offload_request.h"
#include "runtime/engine/offload/state_store.h"

namespace sluiceway {

// The place of a compressed gradient between its backward and its update.
enum class CoreSpill : std::uint8_t {
  kGradient,  // Decompressed, in an extent of each chunk.
  kCore,      // On the device, as a core.
};

struct CoreOptions {
  CodecConfig codec{.name = "identity"};  // For tensors with `compressed`.
  WireFormat wire = WireFormat::kBF16;    // kInt8 is not supported.
  std::int64_t redraw = 0;                // Steps between new projectors; 0: never.
  CoreSpill spill = CoreSpill::kGradient;
};

// Returns whether a step may keep its gradients in cores until their updates.
inline bool may_feed(const CoreOptions& cores, UpdatePolicy policy) {
  return policy == UpdatePolicy::kSpeculative || cores.spill == CoreSpill::kCore;
}

// Returns whether a `compressed` tensor has chunks of its own: one that shares a chunk crosses
// whole.
bool crosses_as_core(const TensorSpec& spec, int tensor, const ChunkPlan& plan);

struct CoreFootprint {
  std::int64_t weights = 0;         // Weights that cross as cores,
  std::int64_t elems = 0;           // their number of elements,
  std::int64_t stored_elems = 0;    // and the elements in their extents.
  std::uint64_t device_bytes = 0;   // Cores, summed and packed; projectors, scratch, results.
  std::uint64_t host_bytes = 0;     // Cores that arrived, scratch; for a card also projectors.
  std::uint64_t landing_bytes = 0;  // Pinned: where cores arrive, beside the ring.
  std::uint64_t d2h_bytes = 0;      // Per step, for any number of micro-batches.
  // Largest number of f32 elements: a core, scratch of compress(), scratch of decompress_range().
  std::size_t core_elems = 0, scratch_elems = 0, range_elems = 0;
};

CoreFootprint core_footprint(std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             const CoreOptions& options, UpdatePolicy policy,
                             DeviceId device = DeviceId::host());

// Returns the time per gradient element of decompression on the calling thread: the least of a few
// tries, for a weight of m x n or for a part of a large one.
double decompress_seconds(const CodecConfig& codec, std::int64_t m, std::int64_t n, DType gradient);

}  // namespace sluiceway
