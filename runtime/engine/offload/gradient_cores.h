// Gradients that cross the link compressed and are stored whole: the device makes S = P^T G Q, and
// the host G^ = P S Q^T.
//
//   device        S <- S + P^T G Q for each micro-batch: a step's gradients are summed in the core
//   d2h           S crosses
//   decompress    G^ tile by tile into the extents of the weight's chunks, rounded, scanned and
//                 squared in the pass that writes them; at most one chunk of G^ is in memory
//
// A weight has one extent, for any number of micro-batches. With CoreSpill::kCore it has none: the
// core stays on the device, and the pass above only scans, to tell whether there is a step. The
// update of each chunk then decompresses it again, to the same bits:
//
//   d2h           S crosses with the first chunk of the weight
//   host          G^ of the chunk, into the memory of its update
//
//                 bytes per element       link, of each core      drive, with the states' 24
//   kGradient     of the weight           1 crossing              28
//   kCore                                 2 crossings             24
//   updated in backward (speculation.h)   1, 2 if made again      24, 28 without room to park
//
// The rounded G^ trains the weight; the part of a gradient that the core omits trains nothing in
// that step. Projectors are drawn from (seed, weight, number of redraws), so a resumed run draws
// the same ones again.
//
// Host memory holds two cores, of the largest weights. A core that waits in d2h for room there
// waits only for cores whose chunks are all behind d2h: the chunks of one weight are submitted
// together and pass d2h in this order, so at most one weight is on both sides of it.
//
// Thread safety: calls from one thread; payloads run in the lanes.
// Lifetime:      everything passed to the constructor outlives the payloads.
// Errors:        OutOfMemory, with the weight's name. InvalidArgument: a codec that draws no
//                projectors from a seed. A hop ends with the error of its request.
// Source:        docs/algorithm.md section 1; LSP-Offload, arXiv 2406.10181.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
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
#include "runtime/engine/offload/gradient_exit.h"
#include "runtime/engine/offload/state_store.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/memory/buffer.h"
#include "runtime/memory/pinned_pool.h"

namespace sluiceway {

class GradientCores {
 public:
  // The hops that give the update of a chunk its gradient.
  struct Feed {
    std::function<void()> cross;  // Runs in d2h.
    std::uint64_t bytes = 0;      // Bytes that `cross` moves.
    ChunkUpdate::Fill fill;       // Runs in the host lane, after `cross`.
  };

  GradientCores(EngineLanes& lanes, StateStream& stream, PinnedPool& ring, const ChunkPlan& plan,
                const ChunkGroups& groups, GradientExit& exit, std::span<const TensorSpec> tensors,
                DType gradient, const CoreOptions& options, UpdatePolicy policy);

  bool holds(int tensor) const { return weights_.at(at(tensor)) != nullptr; }
  CoreShape core(int tensor) const;  // Empty if the gradient crosses whole.
  // Call before the first gradient of a step. kCore needs it among the constructor's options.
  void begin_step(CoreSpill spill) noexcept { spill_ = spill; }
  // Sums the gradient into the core. `step`: number of steps of the run so far.
  void add(int tensor, const AnyMatrix& g, std::int64_t step);
  void send(int tensor);  // Sends and scans the sum, unless it has left already.
  void send_all();
  // Returns the scan of what was sent; call when nothing is in the lanes. If the tensor was not
  // sent, sum_squares is NaN.
  ScanResult scan(int tensor) const;
  int extents(int chunk) const;  // 1 for a chunk with a sent gradient, else 0.
  // Returns whether feed() supplies the gradient of a chunk, and no extent holds it.
  bool feeds(int chunk) const;
  // Call for the chunks of a weight one after another, in order. The fed gradient is scanned too.
  Feed feed(int chunk);
  void clear();  // Forgets every gradient; no payload may be in the lanes.

 private:
  struct Arrival {  // A core in host memory, in wire format.
    std::optional<PinnedPool::Lease> landing;
  };
  static constexpr std::int64_t kNotDrawn = -1;
  struct Weight {
    const TensorSpec* spec = nullptr;
    int tensor = 0;
    std::uint64_t hash = 0;
    std::int64_t draws = kNotDrawn;  // Number of the codec's draw of projectors.
    std::unique_ptr<GradientCodec> codec;
    // Used on a CUDA device for decompression: the codec with projectors in host memory.
    Budget::Reservation twin_bytes;
    std::unique_ptr<GradientCodec> twin;
    Buffer core, packed;  // Device; packed is empty for an f32 wire.
    bool summed = false;  // The core holds gradients of this step.
    bool is_packed = false;
    bool sent = false;
    std::vector<ScanResult> scans;     // By chunk of the weight.
    std::shared_ptr<Arrival> arrival;  // While its chunks are fed.

    const GradientCodec& on_host() const noexcept { return twin ? *twin : *codec; }
  };
  struct Expander {  // Buffers of a lane that decompresses.
    Buffer core;     // The arrived core, as f32.
    Buffer scratch;
    std::uint64_t holds = 0;  // Generation of the landing that `core` was read from.
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  CodecConfig config_of(std::int64_t draw) const;
  void draw(Weight& weight, std::int64_t step);
  Expander make_expander(std::size_t core_elems, std::size_t scratch_elems);
  std::span<const std::byte> outgoing(Weight& weight);
  void cross(Arrival& arrival, const Event& there, std::span<const std::byte> core);
  // Writes chunk `c` of the weight, padded with zeros, into memory of the size of its extent.
  void expand(Expander& with, Weight& weight, const Arrival& arrival, std::size_t c,
              std::span<std::byte> into) const;
  void decompress(Weight& weight, const Arrival& arrival, const HopDone& done);

  EngineLanes& lanes_;
  StateStream& stream_;
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  const ChunkGroups& groups_;
  GradientExit& exit_;
  DType gradient_;
  CoreOptions options_;
  CoreSpill spill_;                               // For the current step.
  std::optional<PinnedPool> landing_;             // Outlives the arrivals of weights.
  Budget twins_;                                  // Without limits: Weight::twin_bytes reserves.
  std::vector<std::unique_ptr<Weight>> weights_;  // By tensor; null: its gradient crosses whole.
  std::vector<int> of_chunk_;                     // The tensor, or -1.
  Buffer scratch_;                                // Device: for compress().
  ResultSlot ignored_;  // Of pack(); the decompressed gradient is scanned.
  Expander in_decompress_, in_host_;
  std::mutex in_host_mutex_;  // Threads of the host lane take turns.
};

}  // namespace sluiceway
