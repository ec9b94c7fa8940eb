// Gradients that cross the link compressed and lie whole: S = P^T G Q on the device, G^ = P S Q^T
// on the host.
//
//   device        S <- S + P^T G Q for each micro-batch: a step's gradients are summed in the core
//   d2h           S crosses
//   decompress    G^ tile by tile into the extents of the weight's chunks, rounded, scanned and
//                 squared in the pass that writes them; nothing holds more of it than a chunk
//
// A weight has one extent, however many micro-batches there are. What is trained is the G^ that
// was written; what the core leaves of a gradient trains nothing in that step. Projectors are drawn
// from (seed, weight, count of redraws), so that a run which is resumed has them again.
//
// Thread safety: calls from one thread; payloads run in the lanes.
// Lifetime:      what the constructor is given outlives the payloads.
// Errors:        OutOfMemory, with the weight's name. InvalidArgument: a codec that draws nothing
//                from a seed. A hop ends with what its request says.
// Source:        docs/algorithm.md section 1; LSP-Offload, arXiv 2406.10181.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compress/gradient_codec.h"
#include "kernels/base/view.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/offload/chunk_groups.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/core_footprint.h"
#include "runtime/engine/offload/state_store.h"
#include "runtime/memory/buffer.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/store/chunk_store.h"

namespace sluiceway {

class GradientCores {
 public:
  GradientCores(EngineLanes& lanes, ChunkStore& store, PinnedPool& ring, const ChunkPlan& plan,
                const ChunkGroups& groups, std::span<const TensorSpec> tensors, DType gradient,
                const CoreOptions& options);

  bool holds(int tensor) const { return weights_.at(at(tensor)) != nullptr; }
  CoreShape core(int tensor) const;  // Without elements where the gradient crosses whole.
  // Sums the gradient into the core. `step`: steps that the run has had.
  void add(int tensor, const AnyMatrix& g, std::int64_t step, StreamRef compute);
  void send(int tensor);  // What was summed leaves; nothing, if it has left.
  void send_all();
  // Of what was written, when nothing is in the lanes; of what was not sent the sum of squares is
  // no number.
  ScanResult scan(int tensor) const;
  int extents(int chunk) const;  // 1 where it holds a gradient that was sent, else 0.
  void clear();                  // Forgets every gradient; no payload is in the lanes.

 private:
  struct Weight {
    const TensorSpec* spec = nullptr;
    std::uint64_t hash = 0;
    std::int64_t draws = -1;  // Of projectors; the codec is that of the last.
    std::unique_ptr<GradientCodec> codec;
    Buffer core, packed;  // Device; packed is empty for an f32 wire.
    bool summed = false;  // The core holds gradients of this step.
    bool sent = false;
    std::vector<ScanResult> scans;  // By chunk of the weight.
    StreamRef compute = StreamRef::host();
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  CodecConfig config_of(std::int64_t draw) const;
  void draw(Weight& weight, std::int64_t step);
  void decompress(int tensor, Weight& weight, std::span<const std::byte> wire, const HopDone& done);

  EngineLanes& lanes_;
  ChunkStore& store_;
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  const ChunkGroups& groups_;
  DType gradient_;
  CoreOptions options_;
  std::vector<std::unique_ptr<Weight>> weights_;  // By tensor; null: its gradient crosses whole.
  std::vector<int> of_chunk_;                     // The tensor, or -1.
  std::optional<PinnedPool> landing_;
  Buffer scratch_;        // Device: of compress().
  Buffer host_core_;      // f32, as it arrived; of the decompress lane.
  Buffer range_scratch_;  // Of the decompress lane.
};

}  // namespace sluiceway
