// Trains every parameter with full AdamW whose states are in a store, on drives or in host memory.
//
//   g  -> wire type, scanned and squared in the pass that copies it off the device -> extent
//   m, v, master, extents -> AdamW -> the other slot of m, v, master; the weight -> the device
//
// One step: expect() first with UpdatePolicy::kSpeculative, then add_gradient() per tensor and
// micro-batch, end_backward() after each backward, step() once, acquire() before a tensor is read.
// step() returns when the step is enqueued. The step is durable when commit() has returned; the
// first gradient of the next step calls commit(). After that, any crash leaves this step or a later
// one, whole. A skipped step changes nothing.
//
// Without drives and with kSpill, states change in place. Host memory holds each once, and AdamW
// changes it where it lies. A gradient of the next step waits only for the updates of its own
// chunks. A commit stores only the counts. An error in a lane leaves the step half made, and the
// states are lost. Chunks for which the host tier has no room are then in files without a name, if
// there are folders for these; states in them end with the engine, too.
//
// The wire type is 16 bits wide, or f32. With drives, host memory holds the ring, and the gradients
// of tensors below half a chunk, which share chunks. Only park_bytes allows memory that grows with
// large tensors (chunk_plan.h). A gradient stays on the device until it is copied; add_gradient()
// waits while more than `gradient_room` bytes are waiting there.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      tensors passed to step() keep their addresses until acquire() for them, and on a
//                CUDA device until the computing stream has passed that. Every stream passed to the
//                engine outlives it.
// Errors:        InvalidArgument for a wrong size or dtype; nothing changed. The next call, and
//                each one after it, rethrows an exception from a lane, with lane and chunk named;
//                a store on drives stays at its last commit. An exception from check_interrupt ends
//                a call that waits; the call can be repeated.
// Source:        docs/store.md; MemAscend, arXiv 2505.23254.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/view.h"
#include "runtime/engine/computing_stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/gated_engine.h"
#include "runtime/engine/offload/chunk_groups.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/gradient_cores.h"
#include "runtime/engine/offload/gradient_exit.h"
#include "runtime/engine/offload/gradient_spill.h"
#include "runtime/engine/offload/kept_weights.h"
#include "runtime/engine/offload/offload_request.h"
#include "runtime/engine/offload/speculation.h"
#include "runtime/engine/offload/state_store.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/engine/offload/weight_fetch.h"
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
  StoreOptions overflow;  // For a store in host memory: nameless drives for what does not fit.
  DType gradient = DType::kBF16;  // Type in extents, and on the link unless compressed.
  StateCodec state_codec = StateCodec::kFp32;
  std::uint64_t seed = 0;  // Of the noise that rounds states.
  CoreOptions cores;       // For tensors whose gradient crosses compressed.
  std::int64_t chunk_elems = ChunkPlan::kChunkElems;
  std::uint64_t gradient_room = std::uint64_t{256} << 20;  // Bytes that may wait on the device.
  UpdatePolicy policy = UpdatePolicy::kSpill;
  // For kSpeculative: gradients also go to extents, so that the updates of a step that differs from
  // expect() can be made again. Always so where max_norm clips.
  bool redo = false;
  std::uint64_t park_bytes = 0;  // For kSpeculative: limit of WeightPark.
  int device_cpu = -1;           // Processor for the h2d stream; -1 leaves it free.
  int lane_cpu = -1;             // Processor for the other lanes.
  int host_threads = 1;          // Of the host lane: chunks at once, with equal bits.
};

// Counts since the last take_stats(); peaks since the start.
struct OffloadStats {
  EngineUse use;
  double host_seconds = 0;  // Busy time of the host lane.
  std::uint64_t disk_read = 0, disk_written = 0;
  double fetch_seconds = 0, store_seconds = 0, spill_seconds = 0, decompress_seconds = 0;
  std::uint64_t commits = 0;
  double commit_seconds = 0;
  // For kSpeculative, steps whose updates: ran in backward and were kept; were made again; ran only
  // after the step.
  std::uint64_t speculative_steps = 0, redone_steps = 0, fallen_back_steps = 0;
};

// m, v and master of one tensor, in its order.
struct TensorState {
  std::span<float> exp_avg, exp_avg_sq, master;
};

class OffloadEngine final : public GatedEngine {
 public:
  // `tensors` are in the order in which the forward needs them. OutOfMemory: both byte counts, also
  // for a pinned budget without room for two chunks.
  OffloadEngine(OffloadOptions options, std::vector<TensorSpec> tensors);
  ~OffloadEngine() override;

  std::size_t size() const noexcept override { return tensors_.size(); }
  const TensorSpec& tensor(int index) const { return tensors_.at(at(index)); }
  const ChunkPlan& plan() const noexcept { return plan_; }
  CoreShape core(int index) const { return cores_.core(index); }  // Empty: it crosses whole.
  const ChunkStore& store() const noexcept { return *store_; }
  const ChunkStore* overflow() const noexcept { return overflow_.get(); }

  // ---- Before the first step: call begin() or resume() ----
  bool is_new() const noexcept { return is_new_; }  // The store has no states; begin() makes them.
  // Returns the weight of a tensor that is away, in host memory that lives until the next call.
  using HostWeight = std::function<AnyMatrix(int index)>;
  // Both access the tensors after work already on `compute`, which they wait for, and
  // before later work. begin() makes zero moments and copies the model's tensors to the masters;
  // commits step 0. With `away`, weights that are away come from there, one after another. The
  // model's tensors get the values of those that are stored as fp8 images.
  void begin(std::span<const AnyMatrix> tensors, StreamRef compute = StreamRef::host(),
             const HostWeight& away = {});
  // Overwrites the model's tensors from the masters of the last commit; steps continue from there.
  void resume(std::span<const AnyMatrix> tensors, StreamRef compute = StreamRef::host());

  // ---- A step ----
  // Tells the values of the next step, with all own factors 1. `factor` is that of the request, for
  // a step that is not clipped. If step() differs, updates made with these values are made again.
  // If their gradients were not kept (neither redo nor max_norm), step() throws InvalidArgument and
  // drops the gradients. Without expect(), a step uses its extents, like every step of kSpill.
  // InvalidArgument: a step's gradients are being gathered.
  void expect(std::span<const TensorHyper> hyper, float factor);
  // Reads `g` after work already on `compute`. Holds `keep` until the gradient has left the device,
  // or, if it is compressed, until the read is enqueued on `compute`.
  void add_gradient(int index, const AnyMatrix& g, const std::shared_ptr<const void>& keep,
                    StreamRef compute);
  // `norm`: compute the norm even over several micro-batches, which reads their extents and
  // decompresses gradients that crossed compressed. Otherwise that norm is NaN.
  GradientNorm end_backward(bool norm = true);
  ScanResult gradient_scan(int index) override { return gate_.scan(index); }
  StepOutcome step(const OffloadRequest& request);
  void drop() override;
  void acquire(int index, StreamRef compute) override;
  void synchronize() override;

  // ---- Streamed weights (weight_fetch.h) ----
  bool is_streamed(int index) const { return tensors_.at(at(index)).streamed; }
  bool is_away(int index) const { return away_.at(at(index)) != 0; }
  // Call once, before the first fetch(). `blocks`: numbers of their streamed tensors. Those that
  // are away are in one. With kSpeculative, fetched weights stay in host memory for their updates,
  // if the budget has room for a few blocks.
  void stream(const std::vector<std::vector<int>>& blocks, int ahead);
  // Brings blocks to the device. step() ends its pass, and begins the next one when its updates are
  // enqueued; every other call that changes weights ends the pass. InvalidArgument: no stream()
  // yet.
  WeightFetch& fetch();
  StoredWeight stored_weight(int index) const {
    return tensor(index).stored_weight(options_.chunk_elems);
  }
  // Copies the weight after the last step into host memory, as it is stored.
  void read_weight(int index, std::span<std::byte> into);

  // ---- Durability ----
  // Sets the bytes that the next commits store beside the states. InvalidArgument: more than the
  // store's run_state_bytes minus the engine's own.
  void set_run_state(std::span<const std::byte> state);
  std::vector<std::byte> run_state();  // From the last commit.
  void commit();                       // synchronize(), then makes the last step durable.
  // commit(), kept until the next pin; returns its generation. InvalidArgument: states change in
  // place.
  std::uint64_t pin();
  // Makes the commit of this generation, live or pinned, the state. States that change in place
  // stay as they are, and so do their counts. InvalidArgument lists the existing generations.
  void roll_back(std::uint64_t generation);

  // Makes close() leave the medium at its last commit, for callers without a run state from which
  // the current step could continue.
  void leave_uncommitted() noexcept { leaves_uncommitted_ = true; }

  // ---- State; synchronizes first ----
  std::int64_t tensor_steps(int index) const { return steps_.at(at(index)); }
  void read_state(int index, const TensorState& into);
  // Stages a state, which commit() then makes durable.
  void write_state(int index, const TensorState& from, std::int64_t steps);

  OffloadStats take_stats();

 private:
  static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  void end_work() override;
  void forget_gradients() override { clear_gradients(); }
  StateStream::Types types(const InPlace& in_place) const noexcept;
  StateStream::Types types() const noexcept { return types(in_place_); }
  bool in_place() const noexcept { return in_place_.any(); }
  std::unique_ptr<ChunkStore> open_store();
  std::unique_ptr<ChunkStore> open_overflow();
  std::vector<GradientSpill::Extents> extent_stores();
  void check_tensor(int index, const AnyMatrix& matrix, const char* what, DType dtype) const;
  // `away`: also of tensors that are away.
  void check_weights(const char* caller, std::span<const AnyMatrix> weights, bool away) const;
  void check_request(const OffloadRequest& request) const;
  void check_begun(const char* caller) const;
  void check_trained(const char* caller, int index) const;
  void check_stream(const char* what, StreamRef compute) const;
  void wait(int group) { lanes_.wait(groups_.update(group)); }
  void take_over();  // Takes the counts of the last commit.
  // Copies the stored values of a chunk's tensors to the model.
  void bring(int chunk, std::span<const AnyMatrix> tensors);
  std::vector<PieceUpdate> updates_of(int chunk, const OffloadRequest& request, float factor) const;
  ChunkUpdate::Emit emit_to(int chunk, const OffloadRequest& request);
  void send(int chunk, const OffloadRequest& request, float factor);
  void send_staged(int chunk, const OffloadRequest& request);
  void submit(int chunk, Payload payload);
  StepOutcome decide(const OffloadRequest& request);
  bool settle(const OffloadRequest& request, float factor);
  bool is_chunk_away(int chunk) const;
  void note_uncommitted(bool uncommitted);
  void start_read(int index, std::uint64_t first, std::span<std::byte> into, bool keeps,
                  ChunkStore::Done done);
  void end_pass();  // Weights are about to change.
  Version written_version();
  int extents(int chunk) const;
  void clear_gradients();

  OffloadOptions options_;
  std::vector<TensorSpec> tensors_;
  std::vector<DType> weight_dtypes_;
  std::vector<Streamed> streamed_;
  std::vector<std::uint8_t> away_;    // By tensor: 1 if its weight is only in the store.
  std::vector<std::uint64_t> names_;  // Keys of noise, one per tensor.
  ChunkPlan plan_;
  InPlace in_place_;
  ChunkGroups groups_;
  EngineLanes lanes_;
  PinnedPool ring_;
  bool is_new_ = false, begun_ = false;
  std::unique_ptr<KeptWeights> kept_;  // For kSpeculative with drives, once blocks are streamed.
  StoreRoom room_, overflow_room_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<ChunkStore> overflow_;  // Has chunks that do not fit into a store in memory.
  StateStream stream_;
  ComputingStream compute_;
  GradientExit exit_;
  GradientCores cores_;
  WeightPark park_;
  Speculation speculation_;
  GradientSpill spill_;
  StepGate gate_;
  Event reached_;                    // Work enqueued before the step on the computing stream.
  std::vector<std::int64_t> steps_;  // By tensor: number of updates.
  std::vector<std::byte> run_state_;
  bool leaves_uncommitted_ = false;
  // A step or a written state is not durable yet. Written under room_.changing().
  bool uncommitted_ = false;
  std::uint64_t commits_ = 0;
  double commit_seconds_ = 0;
  std::uint64_t counted_read_ = 0, counted_written_ = 0;
  Speculation::Counts counted_;
  std::unique_ptr<WeightFetch> fetch_;  // Ends first: it reads through the rest.
};

}  // namespace sluiceway
