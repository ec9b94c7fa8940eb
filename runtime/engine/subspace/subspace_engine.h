// Trains weights through compressed gradients: compress, d2h, AdamW on the core, h2d, apply.
//
//   S_l = P^T (sum of micro-batch gradients) Q      device, in the hook of weight l
//   D_l = AdamW direction of (factor * S_l)         host, or device with CoreTier::kDevice
//   W_l <- (1 - lr wd) W_l - lr scale P D_l Q^T     device, before the weight's next forward
//
// One step: add_gradient() per weight and micro-batch, end_backward() after each backward, step()
// once, acquire() before a weight is read. step() returns when the step is enqueued. What becomes
// of a step is the step gate's to say (step_gate.h), norm modes and all; a step that is skipped has
// changed nothing, but for one thing that the caller chose: with `residual_at_once` a residual
// trains its weight during the last promised backward, before the gradient of the other weights is
// known to be finite. A weight whose own gradient is not finite is left alone, and
// StepOutcome::residuals_kept counts the others. What a rolling calibration has learned from the
// step's finite gradients stays too: projectors, and moments that were carried over.
//
// A core of zeros, of either sign, is a gradient like any other, but it crosses as a flag of one
// byte: experts without tokens cost no transfer from device to host.
//
// On a CUDA device weights, gradients and cores are its memory. Each call may come on a stream of
// its own (computing_stream.h); what a caller's kernels read or write is the caller's to order.
// Scans of gradients cross as one small copy a backward, which end_backward() enqueues and nobody
// waits for but step(), gathered_norm() and gradient_scan(): a step waits once, as late as it can.
// It does wait, since what the caller trains by itself, with the same clip factor or not at all,
// would otherwise have to be the engine's too. add_gradient() waits for the weight's last step,
// which a forward has acquired before, and where it calibrates, for the stream. What became of
// residuals is asked for in a skipped step alone.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      weights passed to step() stay where they are until acquire() for them. Every
//                stream that the engine was given outlives it.
// Errors:        InvalidArgument for a wrong shape or dtype, nothing changed. What a lane throws
//                comes out of the next call, with lane and weight named, and of each one after it.
//                Unavailable: a CUDA device in a build or on a machine without CUDA.
//                What check_interrupt throws ends a call that waits; the call can be made again.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/learner.h"
#include "compress/refresh_policy.h"
#include "runtime/engine/computing_stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/step_gate.h"
#include "runtime/engine/subspace/auto_codec.h"
#include "runtime/engine/subspace/calibration.h"
#include "runtime/engine/subspace/held_gradients.h"
#include "runtime/engine/subspace/subspace_weight.h"
#include "runtime/engine/subspace/weight_state.h"
#include "runtime/memory/readback.h"

namespace sluiceway {

struct SubspaceOptions {
  explicit SubspaceOptions(DeviceId device) noexcept : lanes(device) {}

  EngineLanes::Options lanes;
  StepGate::Options gate;
  bool residual_at_once = false;  // In the last promised backward; otherwise it waits for step().
  int residual_every = 1;  // Steps between a weight's turns; each is then sqrt() of it as large.
  double residual_max_rms = 1;  // Clips the residual's update; infinity: not at all.
  std::uint64_t seed = 0;
  RefreshPolicy::Config refresh;
  RefreshOptions learn;
  RunShape run;  // What codec="auto" reckons with; backwards and refresh are the gate's, refresh's.
  int device_cpu = -1;   // Processor for the apply stream; -1 leaves it free.
  int lane_cpu = -1;     // Processor for link and host lanes.
  int host_threads = 1;  // Of the host lane: AdamW of so many weights at once, with equal bits.
};

struct WeightHyper {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double scale = 0;  // Of the compressed update; 0: the codec's own.
};

struct StepRequest {
  std::span<const WeightHyper> hyper;  // One a weight.
  std::span<const AnyMatrix> weights;  // One a weight, as they are now.
  float factor = 1;                    // What others multiplied the gradient with: unscale, clip.
  double other_sum_squares = 0;        // Of gradients outside the engine, for the common norm.
  float unscale = 1;                   // The part of `factor` that undoes a loss scale.
  std::span<const float> own_factors = {};  // One a weight, beside `factor`; empty: 1 each.
  // Updates come after all that this stream has been given; none: that of the last gradient.
  std::optional<StreamRef> compute = {};
};

// Counts since the last take_stats(), but for peaks, which are since the start.
struct SubspaceStats {
  EngineUse use;
  CalibrationUse calibration;
  double host_seconds = 0;       // Hops of the host lane took, of all its threads.
  std::uint64_t recalled = 0;    // Payloads taken back because a step differed from the forecast.
  std::uint64_t held_bytes = 0;  // Of use.used: gradients of others that wait for step().
  bool speculative = false;
};

class SubspaceEngine {
 public:
  // Weights in the order in which the forward needs them. OutOfMemory: both byte counts and the
  // weight's name. `learner` may be null where no codec learns.
  SubspaceEngine(SubspaceOptions options, std::vector<WeightSpec> weights,
                 std::unique_ptr<ProjectorLearner> learner);
  SubspaceEngine(const SubspaceEngine&) = delete;
  SubspaceEngine& operator=(const SubspaceEngine&) = delete;
  ~SubspaceEngine();

  std::size_t size() const noexcept { return weights_.size(); }
  const SubspaceWeight& weight(int index) const { return *weights_.at(at(index)); }
  const AutoCodec& automatic() const noexcept { return automatic_; }  // What "auto" came to.

  // ---- A step ----
  // `total`, where the weight has a residual: the sum of the step's gradients, this one included.
  // It is used up, and lent until acquire() after the step, or until the residual is done.
  void add_gradient(int index, const AnyMatrix& g, const AnyMatrix& total, StreamRef compute);
  void add_gradient(int index, const AnyMatrix& g, StreamRef compute) {
    add_gradient(index, g, g, compute);
  }
  // In place of a gradient G: `core`, P^T G Q that was computed without forming G, of any dtype.
  // `whole`: nothing more of this backward follows; otherwise a gradient does. project() has the
  // two sides of such a product. InvalidArgument while the projectors wait for a first gradient.
  void add_core(int index, const AnyMatrix& core, bool whole, StreamRef compute);
  // Whether anybody reads `total` after add_gradient(): a residual in its turn, or the norm of a
  // weight without a core. Where not, it may be `g` itself.
  bool keeps_total(int index) const;
  // Whether this step needs the weight's gradient itself: its residual or a calibration has its
  // turn. A residual without it is left out.
  bool wants_gradient(int index) const;
  // What residuals that are applied at once read; before the first gradient of a backward.
  void prepare(std::span<const WeightHyper> hyper, std::span<const AnyMatrix> weights);
  // This weight's residual waits for step(): the weight is used twice in a forward, or the loss is
  // scaled. OutOfMemory: nothing changed.
  void hold_residual(int index);
  bool residual_done(int index) const { return weight(index).gathering.residual_done; }
  // Whether a residual has changed the weight in this step's backwards, which nothing undoes. Waits
  // for the stream of the last gradient if one was applied.
  bool residual_trained(int index) const;
  void end_backward();
  // Of all gradients so far, and of a weight's; after end_backward().
  GradientNorm gathered_norm();
  ScanResult gradient_scan(int index);
  StepOutcome step(const StepRequest& request);
  bool has_gradient() const noexcept { return gate_.has_gradient(); }
  void drop();  // Forgets what was added.
  // Work that is enqueued from now on sees the weight's last update: on `compute`, and on the
  // stream that step() was called on, where the caller takes the update for done.
  void acquire(int index, StreamRef compute);
  void synchronize();  // Every step is applied when it returns.
  static constexpr std::chrono::milliseconds kCloseWaitLimit{5000};
  // drop() and synchronize(), but a lane that is stuck is given up (Executor::give_up_after):
  // Timeout.
  void close(std::chrono::milliseconds wait_limit = kCloseWaitLimit);
  // As close(), whatever lanes have thrown before. Throws what kept it from waiting for a lane that
  // still runs: then the engine, and all that it was lent, must stay for as long as the process.
  void finish(std::chrono::milliseconds wait_limit = kCloseWaitLimit);
  bool idle() const { return lanes_.executor().idle(); }  // No lane has work of ours.

  // ---- Calibration: gradients measure and teach the projectors, and are not accumulated ----
  int uncalibrated() const;  // Weights whose projectors wait for their first gradient.
  bool calibration_due() const { return calibration_.closure_due(gate_.committed_steps()); }
  void begin_calibration();
  void end_calibration() noexcept { calibration_.end(); }

  // ---- State; waits for the weight first ----
  std::int64_t committed_steps() const noexcept { return gate_.committed_steps(); }
  void set_committed_steps(std::int64_t steps) { gate_.set_committed_steps(steps); }
  WeightState save_weight(int index);
  // Throws what load_weight() would; changes nothing.
  void check_weight(int index, const WeightState& state);
  void load_weight(int index, const WeightState& state);
  RefreshPolicy& refresh_policy() noexcept { return calibration_.policy(); }

  // ---- Numbers ----
  void note_device_times(double forward_s, double backward_s);  // Of the last step.
  SubspaceStats take_stats();
  Trace& trace() noexcept { return lanes_.trace(); }
  Budget& budget() noexcept { return lanes_.budget(); }

 private:
  struct Early {
    WeightHyper hyper;
    AnyMatrix weight;
  };
  // A payload that leaves while its step is being gathered does not know the clip factor yet.
  enum class When { kGathering, kStepping };

  static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  void wait(int index);
  void hold_gradient(int index);
  void wait_for_all(int index);  // wait(), and for that stream.
  void check_shape(const SubspaceWeight& weight, const AnyMatrix& matrix, const char* what) const;

  // gather.cpp
  float begin_gathering(int index);  // Returns what the core so far counts: 0 or 1.
  void note_gradient(int index);
  void gathered(int index, StreamRef compute);
  void calibrate(int index, const AnyMatrix& g, StreamRef compute);
  void apply_residual_early(int index, StreamRef compute);
  void scan(int index, bool leaving);
  void scanned(int index);  // A kernel that writes the weight's slot of `scans_` is enqueued.
  bool scans_missing() const;
  void note_scans();  // What has not arrived yet; waits for it.
  void send(int index, When when);
  std::optional<Forecast> add_link_hops(int index, Payload& payload, When when);

  // update.cpp
  void check_request(const StepRequest& request) const;
  bool residual_turn(int index) const noexcept;
  bool residual_applies(int index) const;  // It has its turn, and all that it needs.
  ResidualStep residual_step(const SubspaceWeight& weight, const WeightHyper& hyper) const;
  void begin_update(int index, const StepRequest& request, float factor);
  void ensure_spares();

  SubspaceOptions options_;
  EngineLanes lanes_;
  AutoCodec automatic_;
  Calibration::Weights weights_;
  StepGate gate_;
  Calibration calibration_;
  Buffer compress_scratch_, apply_scratch_, host_scratch_;
  std::mutex host_scratch_mutex_;       // Of int8 on the wire: threads of the host lane take turns.
  Budget::Reservation stream_scratch_;  // Of the streams that compute; they allocate it.
  HeldGradients held_;
  std::vector<Early> early_;
  Readback<ScanResult> scans_;  // Of each weight's gradient.
  bool scans_fetched_ = false;  // As the slots are now.
  Event reached_;               // By the stream that computes, before the step.
  ComputingStream compute_;
};

}  // namespace sluiceway
