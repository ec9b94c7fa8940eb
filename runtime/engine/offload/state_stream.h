// AdamW over states that lie in a store: fetch a chunk, one pass, store it beside the last commit.
//
//   lane    work on one chunk
//   fetch   reads exp_avg, exp_avg_sq and master of the last commit, and the gradient's extents
//   host    g <- sum of the extents, or what fills it; AdamW in place; the weight that the model
//           computes with
//   store   writes the three to the slots that the last commit does not hold
//   h2d     hands the weight on, where the caller takes it
//
// Memory of a chunk is one lease of the ring, from its fetch until its last hop: what the host
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
// Thread safety: calls from one thread; payloads run in the lanes.
// Errors:        a hop ends with what its request says: Corrupt, IoError.
#pragma once

#include <array>
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
#include "runtime/memory/pinned_pool.h"
#include "runtime/schedule/hop.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_layout.h"

namespace sluiceway {

struct ChunkJob;

inline constexpr int kStateStreams = 3;

struct PieceUpdate {
  AdamHyper hyper;
  float grad_scale = 1;
  bool has_gradient = true;  // Without one the piece stays as it is.
};

// What one chunk's update is made with.
struct ChunkUpdate {
  // Takes the weight of a piece as the model computes with it, in its own dtype; called in the h2d
  // lane, the memory lives until what it enqueues on the stream is done.
  using Emit = std::function<void(const ChunkPiece&, std::span<const std::byte>, StreamRef)>;
  // Writes all of a chunk's gradient, in the type that extents have.
  using Fill = std::function<void(std::span<std::byte> gradient)>;

  std::vector<PieceUpdate> pieces;  // As those of the chunk.
  int extents = 1;                  // Micro-batches; 0 where the gradient comes by another way:
  Fill fill;                        // called in the host lane, or
  std::span<std::byte> gathered;    // where it lies, or stage() brings it.
  bool spills = false;              // Extent 0 becomes the gradient, beside the states.
  Emit keep;                        // As `emit`, in the host lane; the memory is lent for the call.
  Emit emit;                        // Null: nobody takes the weight.
};

class StateStream {
 public:
  struct Lanes {
    LaneId fetch = 0, host = 1, store = 2, h2d = 3;
  };
  struct Types {
    DType gradient = DType::kBF16;   // f32, f16 or bf16.
    std::span<const DType> weights;  // One a tensor: what is emitted; f32 is the master itself.
  };
  // Of a piece: exp_avg, exp_avg_sq, master.
  using PieceState = std::array<std::span<float>, kStateStreams>;
  using Visit = std::function<void(const ChunkPiece&, const PieceState&)>;
  // How a gradient leaves the device: into the memory of its chunk, in a lane before fetch that has
  // a thread of the host, for which the gradient is there when this returns.
  using Leave = std::function<void(std::span<std::byte> gradient)>;
  struct Departure {
    LaneId lane = 0;
    Leave leave;              // Null: the gradient is in host memory.
    std::uint64_t bytes = 0;  // That leave.
  };

  // Regions that a store needs for a plan: state, with `slots`, and extents of `micro_batches`.
  static std::vector<RegionSpec> regions(const ChunkPlan& plan, DType gradient, std::uint32_t slots,
                                         std::uint32_t micro_batches);
  static constexpr std::uint32_t kStateRegion = 0, kGradientRegion = 1;

  StateStream(ChunkStore& store, PinnedPool& ring, const ChunkPlan& plan, Lanes lanes, Types types);

  // OutOfMemory, with both byte counts: the ring cannot hold a chunk with so many extents.
  void check_ring(int chunk, int extents) const;

  // ---- In the calling thread, while no payload is in the lanes ----
  // Zero moments and masters, chunk by chunk; `fill` writes the masters of a piece. Not committed.
  void write_initial(const std::function<void(const ChunkPiece&, std::span<float>)>& fill);
  // kLive: the last commit of a chunk. kStaged: what was written last, staged or committed.
  void read(int chunk, Version version, const Visit& visit);
  // What was written last, and what `change` left of it is staged.
  void rewrite(int chunk, const Visit& change);

  // ---- Payloads; the caller adds key, deadline and further hops ----
  // Starts from the last commit, whatever is staged.
  Payload update(int chunk, ChunkUpdate update);
  // The same, with all of its room in the ring taken before the gradient leaves the device.
  Payload stage(int chunk, Departure departure, ChunkUpdate update);
  // Emits the weights of the staged masters; of `update` pieces and emit count.
  Payload emit_staged(int chunk, ChunkUpdate update);
  // Scans the sum of a chunk's extents, into one result a piece.
  Payload scan_sum(int chunk, int extents, std::span<ScanResult> results);

  // Least bytes of the ring with which one chunk can be updated.
  static std::size_t ring_bytes(const ChunkPlan& plan, Types types, int extents);

 private:
  using JobPtr = std::shared_ptr<ChunkJob>;

  JobPtr make_job(int chunk, ChunkUpdate update, std::vector<std::size_t> states) const;
  Payload work_on(const JobPtr& job);
  Hop emit(const JobPtr& job) const;
  void take_room(ChunkJob& job);
  void fetch(const JobPtr& job, HopDone done);
  void store(const JobPtr& job, HopDone done);
  void store_now(const JobPtr& job);
  JobPtr loaded(int chunk, Version version);
  static void visit(const ChunkJob& job, const Visit& act);

  ChunkStore& store_;
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  Lanes lanes_;
  Types types_;
};

}  // namespace sluiceway
