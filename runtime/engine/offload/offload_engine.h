// Trains every parameter with full AdamW whose states lie in a store, on drives or in host memory.
//
//   g  -> 16 bit, scanned and squared in the pass that copies it off the device -> extent
//   m, v, master, extents -> AdamW -> the other slot of m, v, master; the weight -> the device
//
// One step: add_gradient() per tensor and micro-batch, end_backward() after each backward, step()
// once, acquire() before a tensor is read; with UpdatePolicy::kSpeculative, expect() before that.
// step() returns when the step is enqueued. It is durable when commit() has returned, which the
// first gradient of the next step calls: from then on any crash ends at this step or a later one,
// whole. A step that is skipped has changed nothing.
//
// What the host holds is the ring, and the 16-bit gradients of tensors below half a chunk, which
// share chunks: nothing that grows with large tensors (chunk_plan.h) but what park_bytes allows. A
// gradient stays on the device until it is copied; where more wait than `gradient_room`,
// add_gradient() waits.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      tensors passed to step() stay where they are until acquire() for them, and on a
//                CUDA device until the computing stream has passed that. Every stream that the
//                engine was given outlives it.
// Errors:        InvalidArgument for a wrong size or dtype, nothing changed. What a lane throws
//                comes out of the next call, with lane and chunk named, and of each one after it;
//                the store stays at its last commit. What check_interrupt throws ends a call that
//                waits; the call can be made again.
// Source:        docs/store.md; MemAscend, arXiv 2505.23254.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/view.h"
#include "runtime/engine/computing_stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/offload/chunk_groups.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/gradient_cores.h"
#include "runtime/engine/offload/gradient_exit.h"
#include "runtime/engine/offload/gradient_spill.h"
#include "runtime/engine/offload/offload_request.h"
#include "runtime/engine/offload/speculation.h"
#include "runtime/engine/offload/state_store.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/engine/offload/weight_park.h"
#include "runtime/engine/step_gate.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/store/store_room.h"

namespace sluiceway {

struct OffloadOptions {
  explicit OffloadOptions(DeviceId device) noexcept : lanes(device) {}

  EngineLanes::Options lanes;
  StepGate::Options gate;
  StoreOptions store;
  DType gradient = DType::kBF16;  // As it lies in its extent, and crosses where it is whole.
  CoreOptions cores;              // Of tensors whose gradient crosses compressed.
  std::int64_t chunk_elems = ChunkPlan::kChunkElems;
  std::uint64_t gradient_room = std::uint64_t{256} << 20;  // Bytes that may wait on the device.
  UpdatePolicy policy = UpdatePolicy::kSpill;
  // Of kSpeculative: gradients go to extents too, so that a step of which something else was
  // expected is made again. They do where max_norm clips.
  bool redo = false;
  std::uint64_t park_bytes = 0;  // Of kSpeculative: most bytes of WeightPark.
  int device_cpu = -1;           // Processor for the h2d stream; -1 leaves it free.
  int lane_cpu = -1;             // Processor for the other lanes.
  int host_threads = 1;          // Of the host lane: so many chunks at once, with equal bits.
};

// Counts since the last take_stats(), but for peaks, which are since the start.
struct OffloadStats {
  EngineUse use;
  double host_seconds = 0;  // The host lane was busy.
  std::uint64_t disk_read = 0, disk_written = 0;
  double fetch_seconds = 0, store_seconds = 0, spill_seconds = 0, decompress_seconds = 0;
  std::uint64_t commits = 0;
  double commit_seconds = 0;
  // Of kSpeculative: updates were made in backward and kept; made again; made after the step alone.
  std::uint64_t speculative_steps = 0, redone_steps = 0, fallen_back_steps = 0;
};

// m, v and master of one tensor, in its order.
struct TensorState {
  std::span<float> exp_avg, exp_avg_sq, master;
};

class OffloadEngine {
 public:
  // Tensors in the order in which the forward needs them. OutOfMemory: both byte counts; a pinned
  // budget that has no room for two chunks among them.
  OffloadEngine(OffloadOptions options, std::vector<TensorSpec> tensors);
  OffloadEngine(const OffloadEngine&) = delete;
  OffloadEngine& operator=(const OffloadEngine&) = delete;
  ~OffloadEngine();

  std::size_t size() const noexcept { return tensors_.size(); }
  const TensorSpec& tensor(int index) const { return tensors_.at(at(index)); }
  const ChunkPlan& plan() const noexcept { return plan_; }
  CoreShape core(int index) const { return cores_.core(index); }  // Empty: it crosses whole.
  const ChunkStore& store() const noexcept { return *store_; }

  // ---- Before the first step: one of the two ----
  bool is_new() const noexcept { return is_new_; }  // The store has no states; begin() makes them.
  // Behind what `compute` has been given, for which they wait, and before what it is given next.
  // Moments of zeros, masters that are the model's tensors; committed as step 0.
  void begin(std::span<const AnyMatrix> tensors, StreamRef compute = StreamRef::host());
  // The model's tensors become what the masters of the last commit say; steps go on from it.
  void resume(std::span<const AnyMatrix> tensors, StreamRef compute = StreamRef::host());

  // ---- A step ----
  // With what the next step will be made, the own factors being 1: `factor` is that of its request,
  // of a step that is not clipped. Where step() asks for something else, updates that were made
  // with this are made again; InvalidArgument there, and the gradients are dropped, where they are
  // not kept: neither redo nor max_norm. A step of which nothing was said goes by its extents, as
  // every step of kSpill does.
  // InvalidArgument: gradients are gathered.
  void expect(std::span<const TensorHyper> hyper, float factor);
  // Behind what `compute` has been given. `keep` lives until the gradient has left the device, or,
  // where it is compressed, until `compute` has been given what reads it.
  void add_gradient(int index, const AnyMatrix& g, const std::shared_ptr<const void>& keep,
                    StreamRef compute);
  // `norm`: of the sum, where there are several micro-batches, which reads their extents, and
  // decompresses those that crossed compressed; else it is not a number then.
  GradientNorm end_backward(bool norm = true);
  // Of a tensor's gradient so far; after end_backward().
  ScanResult gradient_scan(int index) const { return gate_.scan(index); }
  StepOutcome step(const OffloadRequest& request);
  bool has_gradient() const noexcept { return gate_.has_gradient(); }
  void drop();                                 // Forgets what was added.
  void acquire(int index, StreamRef compute);  // As SubspaceEngine's.
  void synchronize();                          // Every step is applied when it returns.

  // ---- Durability ----
  // What the next commits carry beside the states. InvalidArgument: more than the store's
  // run_state_bytes, less the engine's own.
  void set_run_state(std::span<const std::byte> state);
  std::vector<std::byte> run_state();  // Of the last commit.
  void commit();                       // synchronize(), and the last step is on the medium.
  std::uint64_t pin();  // commit(), which then stays until the next pin; its generation.
  // The commit of this generation, live or pinned, becomes the state. InvalidArgument names those
  // that there are.
  void roll_back(std::uint64_t generation);

  // From now on close() leaves the medium at its last commit: for whoever has no run state that the
  // step at hand could be taken up with.
  void leave_uncommitted() noexcept { leaves_uncommitted_ = true; }

  static constexpr std::chrono::milliseconds kCloseWaitLimit{5000};
  // drop() and commit(), but a lane that is stuck is given up (Executor::give_up_after): Timeout.
  void close(std::chrono::milliseconds wait_limit = kCloseWaitLimit);
  // As close(), whatever lanes have thrown before. Throws what kept it from waiting for a lane that
  // still runs: then the engine, and all that it was lent, must stay for as long as the process.
  void finish(std::chrono::milliseconds wait_limit = kCloseWaitLimit);
  bool idle() const { return lanes_.executor().idle(); }

  // ---- State; synchronizes first ----
  std::int64_t committed_steps() const noexcept { return gate_.committed_steps(); }
  void set_committed_steps(std::int64_t steps) { gate_.set_committed_steps(steps); }
  std::int64_t tensor_steps(int index) const { return steps_.at(at(index)); }
  void read_state(int index, const TensorState& into);
  void write_state(int index, const TensorState& from, std::int64_t steps);  // Staged: commit().

  // ---- Numbers ----
  void note_device_times(double forward_s, double backward_s) {
    lanes_.note_device_times(forward_s, backward_s);
  }
  OffloadStats take_stats();
  Trace& trace() noexcept { return lanes_.trace(); }
  Budget& budget() noexcept { return lanes_.budget(); }

 private:
  static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  StateStream::Types types() const noexcept { return {options_.gradient, weight_dtypes_}; }
  std::unique_ptr<ChunkStore> open_store();
  void check_tensor(int index, const AnyMatrix& matrix, const char* what, DType dtype) const;
  void check_weights(const char* caller, std::span<const AnyMatrix> weights) const;
  void check_request(const OffloadRequest& request) const;
  void check_begun(const char* caller) const;
  void check_stream(const char* what, StreamRef compute) const;
  void wait(int group) { lanes_.wait(groups_.update(group)); }
  void take_over();  // Counts of the last commit.
  std::vector<PieceUpdate> updates_of(int chunk, const OffloadRequest& request, float factor) const;
  ChunkUpdate::Emit emit_to(int chunk, const OffloadRequest& request);
  void send(int chunk, const OffloadRequest& request, float factor);
  void send_staged(int chunk, const OffloadRequest& request);
  void submit(int chunk, Payload payload);
  StepOutcome decide(const OffloadRequest& request);
  bool settle(const OffloadRequest& request, float factor);
  Version written_version();
  int extents(int chunk) const;
  void clear_gradients();

  OffloadOptions options_;
  std::vector<TensorSpec> tensors_;
  std::vector<DType> weight_dtypes_;
  ChunkPlan plan_;
  ChunkGroups groups_;
  EngineLanes lanes_;
  PinnedPool ring_;
  bool is_new_ = false, begun_ = false;
  StoreRoom room_;
  std::unique_ptr<ChunkStore> store_;
  StateStream stream_;
  ComputingStream compute_;
  GradientExit exit_;
  GradientCores cores_;
  WeightPark park_;
  Speculation speculation_;
  GradientSpill spill_;
  StepGate gate_;
  Event reached_;  // What the stream that computes had been given when the step was enqueued.
  std::vector<std::int64_t> steps_;  // Of each tensor: updates that it has had.
  std::vector<std::byte> run_state_;
  bool leaves_uncommitted_ = false;
  bool uncommitted_ = false;  // A step, or a state that was written, is not on the medium.
  std::uint64_t commits_ = 0;
  double commit_seconds_ = 0;
  std::uint64_t counted_read_ = 0, counted_written_ = 0;
  Speculation::Counts counted_;
};

}  // namespace sluiceway
