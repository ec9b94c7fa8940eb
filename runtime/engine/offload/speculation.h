// Updates that are made during the backward, before their step is decided, as expect() said it
// would be: into the slots that the last commit does not hold.
//
//   d2h     takes room for all of the chunk; its gradient leaves the device into it
//   fetch   reads the states of the last commit
//   host    AdamW; the new weight is parked, where there is room
//   store   writes the states, and the gradient to its extent where it may be asked for again
//
// When all of that is done, step() decides. Where the step is as expected, what was staged is the
// step: parked weights go to the device, others are made of their staged masters. Else the staged
// states are dropped, or made again from the extents and the cores. Weights on the device change
// after the decision alone.
//
//                             read    written     bytes of the drive, an element and step
//   parked                    12      12
//   without room              16      12
//   gradients kept            + 0     + 2
//   made again                + 14    + 12        12 read again where the gradient is in a core
//
// A chunk is taken where its gradient is known to be whole: in a step of one backward, and, of
// weights that cross compressed, after the last one promised. Others go by their extents.
//
// No deadlock: a payload has all the memory that it will ever need when its gradient leaves the
// device, and takes it in d2h, its first lane, where these payloads go in the order in which they
// were submitted. Behind d2h it waits for the drive and for lanes in which nobody waits for room
// meanwhile. Others that need the ring hold their part of it for one request alone (extents, in d2h
// and decompress), or come when all of these are through (fetch; GradientSpill::wait_written).
//
// Thread safety: calls from one thread; payloads run in the lanes.
// Lifetime:      what the constructor is given outlives the payloads.
// Errors:        InvalidArgument: see outdate(). A hop ends with what its request says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/offload/chunk_groups.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/gradient_cores.h"
#include "runtime/engine/offload/offload_request.h"
#include "runtime/engine/offload/recent_redos.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/engine/offload/weight_park.h"

namespace sluiceway {

class Speculation {
 public:
  struct Options {
    bool on = false;
    int promised_backwards = 0;    // 0: nothing is known to be whole, and nothing is taken.
    bool keeps_gradients = false;  // Whole ones, in extents: what was staged can be made again.
  };
  struct Counts {  // Of steps; they are disjoint.
    std::uint64_t speculative = 0, redone = 0, fallen_back = 0;
  };

  Speculation(EngineLanes& lanes, StateStream& stream, GradientCores& cores, const ChunkPlan& plan,
              const ChunkGroups& groups, const WeightPark& park, Options options);

  // Of the next step. InvalidArgument: not one hyperparameter a tensor.
  void expect(std::span<const TensorHyper> hyper, float factor);

  // ---- While a step's gradient is gathered ----
  // Before its first gradient. `steps`: those that each tensor has had.
  void begin_step(std::span<const std::int64_t> steps);
  bool active() const noexcept { return active_; }
  bool keeps_gradients() const noexcept { return options_.keeps_gradients; }
  bool takes(int chunk) const;  // A gradient of this chunk that comes now, whole.
  bool takes_core(int tensor) const;
  // `leave` writes all of the gradient of a chunk of one tensor.
  void stage(int chunk, StateStream::Leave leave, std::uint64_t bytes);
  // Of a chunk of several tensors, in memory that stays until its spill key is waited for; `has`:
  // the pieces that have a gradient.
  void stage_gathered(int chunk, std::span<std::byte> gradient, const std::vector<bool>& has);
  void stage_core(int tensor);  // What feed() of its chunks gives.
  // Another gradient of a tensor comes: what was staged of it is made again. InvalidArgument: its
  // gradient is gone; nothing was changed.
  void outdate(int tensor, const std::string& name);

  // ---- The step; no payload is in the lanes ----
  bool is_staged(int chunk) const { return chunks_.at(at(chunk)) == Chunk::kStaged; }
  bool has_staged() const noexcept;  // Or had: the store holds states that were staged.
  // What of a tensor's step is not as expected; empty: nothing.
  std::string difference(int tensor, const TensorHyper& hyper, float factor) const;
  // Whether the gradient of a staged chunk is still there; then it is no longer staged.
  bool give_up(int chunk);
  // A step had an update. `came_true`: every tensor with a gradient was as expected.
  void note_step(bool came_true);
  bool expects() const noexcept { return expected_.has_value(); }
  void forget_expected() noexcept { expected_.reset(); }
  void clear();  // Nothing is staged.

  const Counts& counts() const noexcept { return counts_; }

 private:
  enum class Chunk : std::uint8_t { kUntouched, kStaged, kOutdated };
  struct Expected {
    std::vector<TensorHyper> hyper;
    float factor = 1;
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  bool can_redo(int chunk) const;
  ChunkUpdate update_of(int chunk, const std::vector<bool>& has) const;
  void submit(int chunk, StateStream::Leave leave, std::uint64_t bytes, ChunkUpdate update);

  EngineLanes& lanes_;
  StateStream& stream_;
  GradientCores& cores_;
  const ChunkPlan& plan_;
  const ChunkGroups& groups_;
  const WeightPark& park_;
  Options options_;
  std::vector<Chunk> chunks_;
  std::vector<std::int64_t> steps_;
  std::optional<Expected> expected_;
  bool active_ = false;
  RecentRedos redos_;
  Counts counts_;
};

}  // namespace sluiceway
