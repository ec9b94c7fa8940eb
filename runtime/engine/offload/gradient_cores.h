// Gradients that cross the link compressed and lie whole: S = P^T G Q on the device, G^ = P S Q^T
// on the host.
//
//   device        S <- S + P^T G Q for each micro-batch: a step's gradients are summed in the core
//   d2h           S crosses
//   decompress    G^ tile by tile into the extents of the weight's chunks, rounded, scanned and
//                 squared in the pass that writes them; nothing holds more of it than a chunk
//
// A weight has one extent, however many micro-batches there are. Or none (CoreSpill::kCore): then
// the core stays on the device, the pass above, which tells whether there is a step, keeps nothing
// of what it has scanned, and each chunk is decompressed again, to the same bits, by its update:
//
//   d2h           S crosses with the first chunk of the weight
//   host          G^ of the chunk, into the memory of its update
//
//                 bytes an element        link, of each core      drive, with the states' 24
//   kGradient     of the weight           1 crossing              28
//   kCore                                 2 crossings             24
//   updated in backward (speculation.h)   1, 2 if made again      24, 28 without room to park
//
// What is trained is the rounded G^; what the core leaves of a gradient trains nothing in that
// step. Projectors are drawn from (seed, weight, count of redraws), so that a run which is resumed
// has them again.
//
// Host memory holds two cores, of the largest weights. One that waits in d2h for room there waits
// for cores whose chunks are all behind d2h: those of one weight are submitted together and pass
// that lane in this order, so that at most one weight is on both sides of it.
//
// Thread safety: calls from one thread; payloads run in the lanes.
// Lifetime:      what the constructor is given outlives the payloads.
// Errors:        OutOfMemory, with the weight's name. InvalidArgument: a codec that draws nothing
//                from a seed. A hop ends with what its request says.
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
#include "runtime/store/chunk_store.h"

namespace sluiceway {

class GradientCores {
 public:
  // What the update of a chunk gets its gradient by.
  struct Feed {
    std::function<void()> cross;  // In d2h.
    std::uint64_t bytes = 0;      // That cross then.
    ChunkUpdate::Fill fill;       // In the host lane, behind it.
  };

  GradientCores(EngineLanes& lanes, ChunkStore& store, PinnedPool& ring, const ChunkPlan& plan,
                const ChunkGroups& groups, GradientExit& exit, std::span<const TensorSpec> tensors,
                DType gradient, const CoreOptions& options, UpdatePolicy policy);

  bool holds(int tensor) const { return weights_.at(at(tensor)) != nullptr; }
  CoreShape core(int tensor) const;  // Without elements where the gradient crosses whole.
  // Of the step whose first gradient comes; kCore: the constructor was told of it.
  void begin_step(CoreSpill spill) noexcept { spill_ = spill; }
  // Sums the gradient into the core. `step`: steps that the run has had.
  void add(int tensor, const AnyMatrix& g, std::int64_t step);
  void send(int tensor);  // What was summed leaves and is scanned; nothing, if it has left.
  void send_all();
  // Of what was sent, when nothing is in the lanes; of what was not the sum of squares is no
  // number.
  ScanResult scan(int tensor) const;
  int extents(int chunk) const;  // 1 where it holds a gradient that was sent, else 0.
  // Whether the gradient of a chunk is in no extent and feed() gives it.
  bool feeds(int chunk) const;
  // For the chunks of a weight, one after another in their order. What is fed is scanned too.
  Feed feed(int chunk);
  void clear();  // Forgets every gradient; no payload is in the lanes.

 private:
  struct Arrival {  // A core in host memory, as it crossed.
    std::optional<PinnedPool::Lease> landing;
  };
  static constexpr std::int64_t kNotDrawn = -1;
  struct Weight {
    const TensorSpec* spec = nullptr;
    int tensor = 0;
    std::uint64_t hash = 0;
    std::int64_t draws = kNotDrawn;  // Of projectors; the codec is that of the last.
    std::unique_ptr<GradientCodec> codec;
    // On a CUDA device, for who decompresses: the codec with projectors in host memory.
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
  struct Expander {  // Of a lane that decompresses.
    Buffer core;     // f32, as it arrived.
    Buffer scratch;
    std::uint64_t holds = 0;  // Generation of the landing whose core it is.
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  CodecConfig config_of(std::int64_t draw) const;
  void draw(Weight& weight, std::int64_t step);
  Expander make_expander(std::size_t core_elems, std::size_t scratch_elems);
  std::span<const std::byte> outgoing(Weight& weight);
  void cross(Arrival& arrival, const Event& there, std::span<const std::byte> core);
  // Chunk `c` of the weight, with zeros behind it, into memory as large as its extent.
  void expand(Expander& with, Weight& weight, const Arrival& arrival, std::size_t c,
              std::span<std::byte> into) const;
  void decompress(Weight& weight, const Arrival& arrival, const HopDone& done);

  EngineLanes& lanes_;
  ChunkStore& store_;
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  const ChunkGroups& groups_;
  GradientExit& exit_;
  DType gradient_;
  CoreOptions options_;
  CoreSpill spill_;                               // Of the step at hand.
  std::optional<PinnedPool> landing_;             // Outlives the arrivals of weights.
  Budget twins_;                                  // Refuses nothing: Weight::twin_bytes does.
  std::vector<std::unique_ptr<Weight>> weights_;  // By tensor; null: its gradient crosses whole.
  std::vector<int> of_chunk_;                     // The tensor, or -1.
  Buffer scratch_;                                // Device: of compress().
  ResultSlot ignored_;                            // Of pack(); what is decompressed is scanned.
  Expander in_decompress_, in_host_;
  std::mutex in_host_mutex_;  // Threads of the host lane take turns.
};

}  // namespace sluiceway
