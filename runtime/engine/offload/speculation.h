// Makes updates during the backward, before their step is decided, with the values of expect(), and
// writes them into the slots that the last commit does not hold.
//
//   d2h     takes room for all of the chunk; its gradient leaves the device into it
//   fetch   reads the states of the last commit
//   host    AdamW; the new weight is parked, where there is room
//   store   writes the states, and the gradient to its extent if it may be needed again
//
// When all of that is done, step() decides. If the step is as expected, the staged states are the
// step: parked weights go to the device, and other weights are made from their staged masters.
// Otherwise the staged states are dropped, or made again from the extents and the cores. Weights on
// the device change only after the decision.
//
//                             read    written     bytes of the drive, per element and step
//   parked                    12      12
//   without room              16      12
//   gradients kept            + 0     + 2
//   made again                + 14    + 12        12 read again where the gradient is in a core
//
// A chunk is taken once its gradient is known to be whole: in a step of one backward, or, for
// weights that cross compressed, after the last promised backward. Other chunks use their extents.
//
// No deadlock: a payload takes all the memory that it will ever need in d2h, its first lane, when
// its gradient leaves the device; d2h runs these payloads in the order of submission. After d2h it
// waits only for the drive and for lanes in which no payload waits for room meanwhile. Other users
// of the ring hold their part for a single request (extents, in d2h and decompress), or start when
// all of these payloads have finished (fetch; GradientSpill::wait_written).
//
// Thread safety: calls from one thread; payloads run in the lanes.
// Lifetime:      everything passed to the constructor outlives the payloads.
// Errors:        InvalidArgument: see outdate(). A hop ends with the error of its request.
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
    int promised_backwards = 0;    // 0: no gradient is known to be whole, so none is taken.
    bool keeps_gradients = false;  // In extents, so that staged updates can be made again.
  };
  struct Counts {  // Numbers of steps; they are disjoint.
    std::uint64_t speculative = 0, redone = 0, fallen_back = 0;
  };

  Speculation(EngineLanes& lanes, StateStream& stream, GradientCores& cores, const ChunkPlan& plan,
              const ChunkGroups& groups, const WeightPark& park, Options options);

  // Sets the values of the next step. InvalidArgument: not one hyperparameter per tensor.
  void expect(std::span<const TensorHyper> hyper, float factor);

  // ---- While a step's gradient is gathered ----
  // Call before the first gradient of a step. `steps`: number of updates of each tensor so far.
  void begin_step(std::span<const std::int64_t> steps);
  bool active() const noexcept { return active_; }
  bool keeps_gradients() const noexcept { return options_.keeps_gradients; }
  bool takes(int chunk) const;  // A gradient of this chunk that arrived now would be taken.
  bool takes_core(int tensor) const;
  // For a chunk of one tensor; `leave` writes all of its gradient.
  void stage(int chunk, StateStream::Leave leave, std::uint64_t bytes);
  // For a chunk of several tensors. `gradient` must stay until the chunk's spill key is waited for;
  // `has` marks the pieces that have a gradient.
  void stage_gathered(int chunk, std::span<std::byte> gradient, const std::vector<bool>& has);
  void stage_core(int tensor);  // Uses feed() of its chunks.
  // Call before another gradient of a tensor: its staged update will be made again.
  // InvalidArgument: its earlier gradient was not kept; nothing was changed.
  void outdate(int tensor, const std::string& name);

  // ---- The step; no payload is in the lanes ----
  bool is_staged(int chunk) const { return chunks_.at(at(chunk)) == Chunk::kStaged; }
  bool has_staged() const noexcept;  // Or had: the store holds staged states.
  // Returns the first value of a tensor's step that is not as expected; empty: none.
  std::string difference(int tensor, const TensorHyper& hyper, float factor) const;
  // Marks a staged chunk to be made again if its gradient is still there; returns whether it is.
  bool give_up(int chunk);
  // Call for a step that had an update. `came_true`: every tensor with a gradient was as expected.
  void note_step(bool came_true);
  bool expects() const noexcept { return expected_.has_value(); }
  void forget_expected() noexcept { expected_.reset(); }
  void clear();  // Forgets what was staged.

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
