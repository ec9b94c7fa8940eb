// Trains weights through compressed gradients: compress, d2h, AdamW on the core, h2d, apply.
//
//   S_l = P^T (sum of micro-batch gradients) Q      device, in the hook of weight l
//   D_l = AdamW direction of (factor * S_l)         host, or device with CoreTier::kDevice
//   W_l <- (1 - lr wd) W_l - lr scale P D_l Q^T     device, before the weight's next forward
//
// One step: add_gradient() per weight and micro-batch, end_backward() after each backward, step()
// once, wait() before a weight is read. step() returns when the step is enqueued; nothing that it
// changes is visible before it decided that the gradient is finite.
//
// Norm modes: exact      host work starts at step(), when norm and clip factor are known;
//             speculative host work starts on arrival with the last step's factor, into spare
//                        moments; step() commits it, or recalls it and does it again.
// Both give the same bits, as do all orders of the executor.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      weights passed to step() stay where they are until wait() has returned for them.
// Errors:        InvalidArgument for a wrong shape or dtype, nothing changed. What a lane throws
//                comes out of the next call, with lane and weight named, and of each one after it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/learner.h"
#include "compress/refresh_policy.h"
#include "runtime/device/link_copy.h"
#include "runtime/engine/norm_mode.h"
#include "runtime/engine/weight_slot.h"
#include "runtime/memory/budget.h"
#include "runtime/schedule/cost_model.h"
#include "runtime/schedule/executor.h"
#include "runtime/trace/trace.h"

namespace sluiceway {

struct EngineOptions {
  DeviceId device;
  LinkCopy::Config d2h{}, h2d{};
  Budget::Limits limits{};
  std::uint64_t resident_bytes = 0;  // Of the model, on the device before the engine comes.
  Order order = Order::kEdf;
  NormChoice norm = NormChoice::kAuto;
  double max_norm = 0;            // 0: the engine does not clip.
  int promised_backwards = 0;     // Micro-batches a step; 0: as many as in the last step.
  bool residual_at_once = false;  // In the last promised backward; otherwise it waits for step().
  int residual_every = 1;  // Steps between a weight's turns; each is then sqrt() of it as large.
  double residual_max_rms = 1;  // Clips the residual's update; infinity: not at all.
  std::uint64_t seed = 0;
  RefreshPolicy::Config refresh{};
  RefreshOptions learn{};
  int device_cpu = -1;  // Processor for the apply stream; -1 leaves it free.
  int lane_cpu = -1;    // Processor for link and host lanes.
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
};

struct StepOutcome {
  bool skipped = false;   // The gradient was not finite: nothing changed.
  double grad_norm = 0;   // Of factor * gradient, before max_norm.
  float clip_factor = 1;  // What max_norm asks for; others multiply their gradients with it too.
};

struct GradientNorm {
  double norm = 0;  // Of all accumulated cores together.
  bool finite = true;
};

// Counts since the last take_stats(), but for peaks, which are since the start.
struct EngineStats {
  std::uint64_t d2h_bytes = 0, h2d_bytes = 0;
  double stall_seconds = 0;    // Forward waited for an apply, and the apply lane had nothing to do.
  double host_seconds = 0;     // The host lane was busy.
  double learn_seconds = 0;    // Calibration and learning, inside the step's time.
  std::uint64_t recalled = 0;  // Payloads taken back because a step differed from the forecast.
  std::uint64_t refreshed = 0;      // Projectors replaced.
  std::optional<double> bias_mean;  // Relative bias, over the weights where it was measured.
  Budget::Limits used{}, peak{};    // By tier.
  std::uint64_t held_bytes = 0;     // Of `used`: gradients of others that wait for step().
  bool speculative = false;
};

class SubspaceEngine {
 public:
  // Weights in the order in which the forward needs them. OutOfMemory: both byte counts and the
  // weight's name. `learner` may be null where no codec learns.
  SubspaceEngine(EngineOptions options, std::vector<WeightSpec> weights,
                 std::unique_ptr<ProjectorLearner> learner);
  SubspaceEngine(const SubspaceEngine&) = delete;
  SubspaceEngine& operator=(const SubspaceEngine&) = delete;
  ~SubspaceEngine();

  std::size_t size() const noexcept { return slots_.size(); }
  const WeightSlot& slot(int weight) const { return *slots_.at(static_cast<std::size_t>(weight)); }

  // ---- A step ----
  // `total`, where the weight has a residual: the sum of the step's gradients, this one included.
  // It is used up, and lent until wait() has returned after the step, or until the residual is
  // done.
  void add_gradient(int weight, const AnyMatrix& g, const AnyMatrix& total, StreamRef compute);
  void add_gradient(int weight, const AnyMatrix& g, StreamRef compute) {
    add_gradient(weight, g, g, compute);
  }
  // What residuals that are applied at once read; before the first gradient of a backward.
  void prepare(std::span<const WeightHyper> hyper, std::span<const AnyMatrix> weights);
  // This weight's residual waits for step(): the weight is used twice in a forward, or the loss is
  // scaled. OutOfMemory: nothing changed.
  void hold_residual(int weight);
  GradientNorm end_backward();
  StepOutcome step(const StepRequest& request);
  bool has_gradient() const noexcept;  // Something was added since the last step() or drop().
  void drop();                         // Forgets what was added.
  double wait(int weight);             // Returns the stall in seconds.
  void synchronize();
  void finish() noexcept;  // drop() and synchronize(), whatever a lane has thrown.

  // ---- Calibration: gradients measure and teach the projectors, and are not accumulated ----
  bool calibration_due() const;  // A closure's turn, by the refresh policy.
  void begin_calibration();
  void end_calibration();

  // ---- State; synchronizes first ----
  std::int64_t committed_steps() const noexcept { return committed_steps_; }
  void set_committed_steps(std::int64_t steps);
  void forecast_backwards(int weight, int backwards);  // Where no number was promised.
  WeightSlot& quiescent_slot(int weight);              // No lane touches it until the next step().
  RefreshPolicy& refresh_policy() noexcept { return refresh_; }

  // ---- Numbers ----
  void note_device_times(double forward_s, double backward_s);  // Of the last step.
  EngineStats take_stats();
  std::vector<LayerCost> measured_costs() const;
  Trace& trace() noexcept { return trace_; }
  Budget& budget() noexcept { return budget_; }

 private:
  struct Early {
    WeightHyper hyper;
    AnyMatrix weight;
  };
  bool residual_turn(int weight) const noexcept;
  ResidualStep residual_step(const WeightSlot& slot, const WeightHyper& hyper) const;
  void check_shape(const WeightSlot& slot, const AnyMatrix& matrix, const char* what) const;
  void calibrate(int weight, const AnyMatrix& g, StreamRef compute);
  // A payload that leaves while its step is being gathered does not know the clip factor yet.
  enum class When { kGathering, kStepping };
  void submit(int weight, When when);
  void add_link_tasks(WeightSlot& slot, Payload& payload, When when);
  bool begin_updates(const StepRequest& request, float factor);  // Whether any was done again.
  bool gathering() const noexcept;  // Payloads of a step that is not committed are in the lanes.
  void tune_schedule(bool redone);
  void ensure_spares();

  EngineOptions options_;
  Budget budget_;
  Budget::Reservation resident_;
  Trace trace_;
  std::vector<std::unique_ptr<WeightSlot>> slots_;
  std::unique_ptr<ProjectorLearner> learner_;
  RefreshPolicy refresh_;
  Buffer compress_scratch_, apply_scratch_, host_scratch_;
  LinkCopy d2h_, h2d_;
  Stream d2h_stream_, host_stream_, h2d_stream_, apply_stream_;
  Trace::Row device_row_;
  std::unique_ptr<Executor> executor_;  // After the streams: it drains before they end.
  NormModeChooser norm_mode_;
  std::int64_t committed_steps_ = 0;
  std::vector<Early> early_;
  float forecast_factor_ = 1;
  bool calibrating_ = false;
  EngineStats stats_;
  std::uint64_t counted_d2h_ = 0, counted_h2d_ = 0;
  double bias_sum_ = 0;
  std::uint64_t bias_count_ = 0;
  double forward_s_ = 0, backward_s_ = 0;
};

}  // namespace sluiceway
