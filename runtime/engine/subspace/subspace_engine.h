// Trains weights through compressed gradients: compress, d2h, AdamW on the core, h2d, apply.
//
//   S_l = P^T (sum of micro-batch gradients) Q      device, in the hook of weight l
//   D_l = AdamW direction of (factor * S_l)         host, or device with CoreTier::kDevice
//   W_l <- (1 - lr wd) W_l - lr scale P D_l Q^T     device, before the weight's next forward
//
// One step: add_gradient() per weight and micro-batch, end_backward() after each backward, step()
// once, acquire() before a weight is read. step() returns when the step is enqueued. StepGate
// decides whether a step is applied or skipped, in all norm modes (step_gate.h). A skipped step
// changes nothing, with two exceptions. With `residual_at_once`, an option of the caller, a
// residual trains its weight during the last promised backward, before the gradients of the other
// weights are known to be finite. A weight whose own gradient is not finite is left alone, and
// StepOutcome::residuals_kept counts the others. The results of a rolling calibration on the step's
// finite gradients stay too: projectors, and moments carried over to them.
//
// A core that holds only zeros, of either sign, crosses as a flag of one byte, and is otherwise a
// gradient like any other. So experts without tokens cost no transfer from device to host.
//
// On a CUDA device, weights, gradients and cores are in its memory. Each call may come on a stream
// of its own (computing_stream.h); the caller orders its own kernels' reads and writes. Scans of
// gradients cross in one small copy per backward, enqueued by end_backward(). Only step(),
// gathered_norm() and gradient_scan() wait for it, so a step waits once, as late as it can. The
// wait is needed because the caller trains other parameters by itself, with the same clip factor,
// or not at all if the step is skipped. add_gradient() waits for the weight's last step, which a
// forward has already acquired, and for the stream if the weight calibrates. Results of residuals
// are read back only in a skipped step.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      weights passed to step() keep their addresses until acquire() for them. Every
//                stream passed to the engine outlives it.
// Errors:        InvalidArgument for a wrong shape or dtype; nothing changed. The next call, and
//                each one after it, rethrows an exception from a lane, with lane and weight named.
//                Unavailable: a CUDA device in a build or on a machine without CUDA. An exception
//                from check_interrupt ends a call that waits; the call can be repeated.
#pragma once

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
#include "runtime/engine/gated_engine.h"
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
  bool residual_at_once = false;  // In the last promised backward; otherwise in step().
  int residual_every = 1;         // Steps between a weight's turns; scales each by its sqrt().
  double residual_max_rms = 1;    // Clips the residual's update; infinity: no clipping.
  // Other processes have gradients, too: the caller averages cores and sums, see averaged().
  bool shared = false;
  std::uint64_t seed = 0;
  RefreshPolicy::Config refresh;
  RefreshOptions learn;
  RunShape run;          // For codec="auto"; the engine fills in backwards and refresh.
  int device_cpu = -1;   // Processor for the apply stream; -1 leaves it free.
  int lane_cpu = -1;     // Processor for link and host lanes.
  int host_threads = 1;  // Of the host lane: weights in AdamW at once, with equal bits.
};

struct WeightHyper {
  double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  double scale = 0;  // Of the compressed update; 0: the codec's default.
};

struct StepRequest {
  std::span<const WeightHyper> hyper;       // One per weight.
  std::span<const AnyMatrix> weights;       // One per weight, with present addresses.
  float factor = 1;                         // Common factor of all gradients: unscale, clip.
  double other_sum_squares = 0;             // Of gradients outside the engine, for the common norm.
  float unscale = 1;                        // The part of `factor` that undoes a loss scale.
  std::span<const float> own_factors = {};  // One per weight, times `factor`; empty: 1 each.
  // Updates follow all work on this stream; none: on the stream of the last gradient.
  std::optional<StreamRef> compute = {};
};

// Counts since the last take_stats(); peaks since the start.
struct SubspaceStats {
  EngineUse use;
  CalibrationUse calibration;
  double host_seconds = 0;       // Time of hops in the host lane, over all its threads.
  std::uint64_t recalled = 0;    // Payloads taken back because a step differed from the forecast.
  std::uint64_t held_bytes = 0;  // Part of use.used: callers' gradients that wait for step().
  bool speculative = false;
};

class SubspaceEngine final : public GatedEngine {
 public:
  // `weights` are in the order in which the forward needs them. OutOfMemory: both byte counts and
  // the weight's name. `learner` may be null where no codec learns.
  SubspaceEngine(SubspaceOptions options, std::vector<WeightSpec> weights,
                 std::unique_ptr<ProjectorLearner> learner);
  ~SubspaceEngine() override;

  std::size_t size() const noexcept override { return weights_.size(); }
  const SubspaceWeight& weight(int index) const { return *weights_.at(at(index)); }
  const AutoCodec& automatic() const noexcept { return automatic_; }  // The choice for "auto".

  // ---- A step ----
  // `total` is needed where the weight has a residual: the sum of the step's gradients, including
  // `g`. The engine overwrites it, and borrows it until acquire() after the step or until the
  // residual is done.
  void add_gradient(int index, const AnyMatrix& g, const AnyMatrix& total, StreamRef compute);
  void add_gradient(int index, const AnyMatrix& g, StreamRef compute) {
    add_gradient(index, g, g, compute);
  }
  // Adds `core` in place of a gradient G: P^T G Q, computed without forming G, of any dtype.
  // `whole`: this completes the backward; otherwise a gradient follows. project() returns the two
  // sides of such a product. InvalidArgument while the projectors wait for a first gradient.
  void add_core(int index, const AnyMatrix& core, bool whole, StreamRef compute);
  // Returns whether `total` is read after add_gradient(), by a residual in its turn or by the norm
  // of a weight without a core. If not, it may be `g` itself.
  bool keeps_total(int index) const;
  // Returns whether this step needs the weight's whole gradient, because its residual or a
  // calibration is due. Without it, the residual is left out.
  bool wants_gradient(int index) const;
  // Provides the input of residuals applied at once; call before the first gradient of a backward.
  void prepare(std::span<const WeightHyper> hyper, std::span<const AnyMatrix> weights);
  // Makes this weight's residual wait for step(), because the weight is used twice in a forward or
  // the loss is scaled. OutOfMemory: nothing changed.
  void hold_residual(int index);
  bool residual_done(int index) const { return weight(index).gathering.residual_done; }
  // Returns whether a residual has changed the weight in this step's backwards, which nothing
  // undoes. Waits for the stream of the last gradient if a residual was applied.
  bool residual_trained(int index) const;
  void end_backward();
  // Norm of all gradients so far, and scan of one weight's; call after end_backward().
  GradientNorm gathered_norm();
  ScanResult gradient_scan(int index) override;
  StepOutcome step(const StepRequest& request);
  void drop() override;
  void acquire(int index, StreamRef compute) override;
  void synchronize() override;

  // ---- Gradients that several processes share, with the option `shared` ----
  // Nothing leaves the device before averaged(), and a gradient calibrates nothing by itself.
  // Returns the core of the gradients so far, which the caller may change before averaged().
  MatrixView<float> core(int index) const { return weight(index).staging.core(); }
  // Call after core and total have been changed: scans them, and sends a complete core.
  void averaged(int index);
  // Returns whether the weight's next gradient is one to pass to calibrate_on(), averaged.
  bool calibrates(int index) const;
  void calibrate_on(int index, const AnyMatrix& g, StreamRef compute);

  // ---- Calibration: gradients measure and fit the projectors, and are not accumulated ----
  int uncalibrated() const;  // Weights whose projectors wait for a first gradient.
  bool calibration_due() const { return calibration_.closure_due(gate_.committed_steps()); }
  void begin_calibration();
  void end_calibration() noexcept { calibration_.end(); }

  // ---- State; waits for the weight first ----
  WeightState save_weight(int index);
  // Throws what load_weight() would throw, but changes nothing.
  void check_weight(int index, const WeightState& state);
  void load_weight(int index, const WeightState& state);
  RefreshPolicy& refresh_policy() noexcept { return calibration_.policy(); }

  SubspaceStats take_stats();

 private:
  struct Early {
    WeightHyper hyper;
    AnyMatrix weight;
  };
  // A payload sent while its step is being gathered does not know the clip factor yet.
  enum class When { kGathering, kStepping };

  static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  void end_work() override { synchronize(); }
  void forget_gradients() override;
  void wait(int index);
  void hold_gradient(int index);
  void wait_for_all(int index);  // wait(), and wait for the computing stream.
  void check_shape(const SubspaceWeight& weight, const AnyMatrix& matrix, const char* what) const;

  // ---- In subspace_engine_gather.cpp ----
  float begin_gathering(int index);  // Returns the factor of the core so far: 0 or 1.
  void note_gradient(int index);
  void gathered(int index, StreamRef compute);
  void calibrate(int index, const AnyMatrix& g, StreamRef compute);
  void apply_residual_early(int index, StreamRef compute);
  void scan(int index, bool leaving);
  void scanned(int index);  // Call after enqueuing a kernel that writes the slot in `scans_`.
  bool scans_missing() const;
  void note_scans();  // Waits for the scans that have not arrived yet.
  void send(int index, When when);
  std::optional<Forecast> add_link_hops(int index, Payload& payload, When when);

  // ---- In subspace_engine_update.cpp ----
  void check_request(const StepRequest& request) const;
  bool residual_turn(int index) const noexcept;
  bool residual_applies(int index) const;  // It is due and has all its input.
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
  std::mutex host_scratch_mutex_;       // For int8 on the wire: host threads take turns.
  Budget::Reservation stream_scratch_;  // For the computing streams, which allocate it.
  HeldGradients held_;
  std::vector<Early> early_;
  Readback<ScanResult> scans_;  // One per weight's gradient.
  bool scans_fetched_ = false;  // A copy of the present slots was enqueued.
  Event reached_;               // Reached by the computing stream before the step.
  ComputingStream compute_;
};

}  // namespace sluiceway
