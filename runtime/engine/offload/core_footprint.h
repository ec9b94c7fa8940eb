// Which gradients cross the link as cores, and what that takes of each tier, nothing being made.
//
// Errors: InvalidArgument: a codec that draws nothing from a seed, or a wire that is not taken.
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

// Where a compressed gradient is between its backward and its update.
enum class CoreSpill : std::uint8_t {
  kGradient,  // Decompressed, in an extent of each chunk.
  kCore,      // On the device, as it is.
};

struct CoreOptions {
  CodecConfig codec{.name = "identity"};  // Of tensors with `compressed`.
  WireFormat wire = WireFormat::kBF16;    // kInt8 is not taken.
  std::int64_t redraw = 0;                // Steps between new projectors; 0: never.
  CoreSpill spill = CoreSpill::kGradient;
};

// Whether a step may keep its gradients in cores until their updates.
inline bool may_feed(const CoreOptions& cores, UpdatePolicy policy) {
  return policy == UpdatePolicy::kSpeculative || cores.spill == CoreSpill::kCore;
}

// A tensor with `compressed` whose chunks are its own: one that shares a chunk crosses whole.
bool crosses_as_core(const TensorSpec& spec, int tensor, const ChunkPlan& plan);

struct CoreFootprint {
  std::int64_t weights = 0;         // That cross as cores,
  std::int64_t elems = 0;           // their elements,
  std::int64_t stored_elems = 0;    // and those of their extents.
  std::uint64_t device_bytes = 0;   // Cores, as summed and as sent, projectors, scratch,
                                    // and what kernels leave for the host.
  std::uint64_t host_bytes = 0;     // Cores that have arrived, scratch; for a card projectors too.
  std::uint64_t landing_bytes = 0;  // Pinned: what cores arrive in, beside the ring.
  std::uint64_t d2h_bytes = 0;      // A step, however many micro-batches.
  // f32 elements of the largest: a core, scratch of compress(), scratch of decompress_range().
  std::size_t core_elems = 0, scratch_elems = 0, range_elems = 0;
};

CoreFootprint core_footprint(std::span<const TensorSpec> tensors, const ChunkPlan& plan,
                             const CoreOptions& options, UpdatePolicy policy,
                             DeviceId device = DeviceId::host());

// Of one element of a gradient, decompressed on the calling thread: the least of a few tries with
// a weight of m x n, or with a part of it where it is large.
double decompress_seconds(const CodecConfig& codec, std::int64_t m, std::int64_t n, DType gradient);

}  // namespace sluiceway
