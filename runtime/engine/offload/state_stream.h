// Runs AdamW over states in a store: fetch a chunk, update it in one pass, store it beside the last
// commit.
//
//   lane    work on one chunk
//   fetch   reads exp_avg, exp_avg_sq and master of the last commit, and the gradient's extents
//   host    g <- sum of the extents, or the result of `fill`; AdamW in place; the weight in the
//           model's type
//   store   writes the three states to the slots that the last commit does not hold
//   h2d     passes the weight to the caller, if the caller takes it
//
// A chunk takes one lease of the ring, from its fetch until its last hop. So the host holds only
// the ring, whatever the size of the model. Extents are summed tile by tile in the cache, in f32,
// in order of the micro-batches: no f32 gradient is ever in memory.
//
// `in_place`: the store is in host memory and has one slot. Its chunks lie side by side, without
// gaps. The host lane works on that memory; nothing is fetched or stored, and an update cannot be
// taken back. The ring then holds only gradients on their way off the device, gradients that `fill`
// writes, and copies of weights on their way back. Chunks for which there is no room there are in a
// second store, on drives, which has one slot too and is never committed.
//
// Otherwise a store has these streams:
//
//   stream         chunk of the state region     bytes per element
//   exp_avg        3 c                           4
//   exp_avg_sq     3 c + 1                       4
//   master         3 c + 2                       4
//   gradient       c, of the gradient region     2 or 4, each extent
//
// With a codec that rounds states, all three are chunk c of the state region (state_form.h). The
// weight of a streamed tensor, unless it is the master, is in a third region, which has chunks for
// these alone.
//
// Lifetime:      store, ring and plan outlive the payloads.
// Thread safety: calls from one thread; payloads run in the lanes.
// Errors:        a hop ends with the error of its request: Corrupt, IoError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/adam.h"
#include "kernels/base/dtype.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/state_form.h"
#include "runtime/engine/offload/state_places.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/schedule/hop.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {

struct ChunkJob;
class KeptWeights;

struct PieceUpdate {
  AdamHyper hyper;
  float grad_scale = 1;
  bool has_gradient = true;  // Without one the piece does not change.
};

// The input of one chunk's update.
struct ChunkUpdate {
  // Takes the weight of a piece in the model's dtype. Called in the h2d lane; the memory lives
  // until work that it enqueues on the stream is done.
  using Emit = std::function<void(const ChunkPiece&, std::span<const std::byte>, StreamRef)>;
  // Writes all of a chunk's gradient, in the type of the extents.
  using Fill = std::function<void(std::span<std::byte> gradient)>;

  std::vector<PieceUpdate> pieces;  // In the order of the chunk's pieces.
  int extents = 1;                  // Micro-batches; 0 where the gradient comes from `fill`,
  Fill fill;                        // called in the host lane, from `gathered`,
  std::span<std::byte> gathered;    // in host memory, or from stage().
  bool spills = false;              // Also writes the gradient, as extent 0, beside the states.
  Emit keep;  // Like `emit`, but in the host lane; the memory is lent for the call.
  Emit emit;  // Null: the weight is not passed on.
};

class StateStream {
 public:
  struct Lanes {
    LaneId fetch = 0, host = 1, store = 2, h2d = 3;
  };
  struct Types {
    DType gradient = DType::kBF16;   // f32, f16 or bf16.
    std::span<const DType> weights;  // One per tensor: type of `emit`.
    InPlace in_place = {};
    bool feeds = false;    // Updates may get their gradient from `fill`.
    bool on_card = false;  // The weights go to a CUDA device.
    StateCodec codec = StateCodec::kFp32;
    std::uint64_t seed = 0;                     // Of the noise that rounds states,
    std::span<const std::uint64_t> names = {};  // with one key per tensor; kFp32 has none.
    std::span<const Streamed> streamed = {};    // One per tensor; empty: none is.
  };
  using PieceState = StateForm::PieceState;
  using Visit = std::function<void(const ChunkPiece&, const PieceState&)>;
  // Moves a gradient off the device into the memory of its chunk, and returns when it is there.
  // Runs in a lane before fetch that has a host thread.
  using Leave = std::function<void(std::span<std::byte> gradient)>;
  struct Departure {
    LaneId lane = 0;
    Leave leave;              // Null: the gradient is in host memory.
    std::uint64_t bytes = 0;  // Bytes that leave the device.
  };

  // Returns the regions of a store for a plan: state, with `slots`, extents of `micro_batches`, and
  // weights, with `slots`, if any are stored. In place there is one slot, and each region is one
  // chunk.
  static std::vector<RegionSpec> regions(const ChunkPlan& plan, const Types& types,
                                         std::uint32_t slots, std::uint32_t micro_batches);
  // Returns the regions of the second store, beside one that changes in place; none if host memory
  // has room for all chunks.
  static std::vector<RegionSpec> overflow_regions(const ChunkPlan& plan, const Types& types,
                                                  std::uint32_t micro_batches);
  static StatePlaces places_of(const ChunkPlan& plan, const Types& types);
  static constexpr std::uint32_t kStateRegion = 0, kGradientRegion = 1, kWeightRegion = 2;

  // `overflow`: has the chunks that are not in place, if `store` changes in place; else null.
  StateStream(ChunkStore& store, ChunkStore* overflow, PinnedPool& ring, const ChunkPlan& plan,
              Lanes lanes, Types types);

  // Weights that read_weight() keeps stay there for their updates; null: none.
  void keep_weights(KeptWeights* kept) noexcept { kept_ = kept; }

  // OutOfMemory, with both byte counts: the ring cannot hold a chunk with `extents` extents.
  void check_ring(int chunk, int extents) const;
  // Writes an extent of a chunk; `from` lives until `done` is called.
  void write_extent(int chunk, int slot, std::span<const std::byte> from, ChunkStore::Done done);

  // ---- From any thread ----
  // Reads a streamed weight as it is stored (stored_weight.h), or those of its chunks that fill
  // `into`, from byte `first` on. No update of it may be in the lanes, and no
  // call that changes the store may run. `done` may come from any thread.
  // `keeps`: also gives it to keep_weights(); the read ends before the next pass begins.
  void read_weight(int tensor, Version version, std::uint64_t first, std::span<std::byte> into,
                   bool keeps, ChunkStore::Done done);

  // ---- In the calling thread, while no payload is in the lanes ----
  // Writes zero moments, and masters from `fill`, chunk by chunk. Does not commit.
  void write_initial(const std::function<void(const ChunkPiece&, std::span<float>)>& fill);
  // kLive: reads the last commit of a chunk. kStaged: the last write, staged or committed. In place
  // both are the present states.
  void read(int chunk, Version version, const Visit& visit);
  // Passes the last write to `change`, and stages the result.
  void rewrite(int chunk, const Visit& change);

  // ---- Payloads; the caller adds key, deadline and further hops ----
  // Starts from the last commit, even if something is staged; in place from the present states.
  Payload update(int chunk, ChunkUpdate update);
  // Same, but takes all of its room in the ring before the gradient leaves the device.
  Payload stage(int chunk, Departure departure, ChunkUpdate update);
  // Emits the weights of the staged masters; uses only pieces and emit of `update`.
  Payload emit_staged(int chunk, ChunkUpdate update);
  // Scans the sum of a chunk's extents, into one result per piece.
  Payload scan_sum(int chunk, int extents, std::span<ScanResult> results);

  // Returns the least bytes of the ring with which one chunk can leave the device and be updated.
  static std::size_t ring_bytes(const ChunkPlan& plan, Types types, int extents);

 private:
  using JobPtr = std::shared_ptr<ChunkJob>;

  // In the calling thread: the store may grow while payloads of another step are in the lanes.
  JobPtr make_job(int chunk, ChunkUpdate update, StateSet states);
  Payload work_on(const JobPtr& job);
  Hop fetch_hop(const JobPtr& job, std::uint64_t bytes);
  Hop emit(const JobPtr& job) const;
  // Memory of a chunk of a run that is changed in place.
  std::span<std::byte> state_memory(int chunk, const StateForm& form, std::size_t part);
  std::span<std::byte> extent_memory(int chunk, int slot);
  ChunkId state_chunk(int chunk, std::size_t part) const;
  ChunkId extent_chunk(int chunk) const { return {kGradientRegion, places_.of(chunk).trained}; }
  bool overflows() const noexcept { return &requests_ != &store_; }
  Version version_of(ChunkId id, Version version) const;
  void take_room(ChunkJob& job);
  void fetch(const JobPtr& job, HopDone done);
  void store(const JobPtr& job, HopDone done);
  void store_now(const JobPtr& job);
  JobPtr loaded(int chunk, Version version);

  ChunkStore& store_;     // Has the chunks in place,
  ChunkStore& requests_;  // and the one that has the others.
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  Lanes lanes_;
  Types types_;
  StatePlaces places_;
  KeptWeights* kept_ = nullptr;
};

}  // namespace sluiceway
