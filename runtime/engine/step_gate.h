// Decides the fate of a step: whether it is skipped, how much it is clipped, which payloads enter
// the lanes before that is known, and which must be computed again.
//
// A step's gradient comes in parts, one for each key of the executor. In each backward the engine
// adds to a part; after the last backward it scans the part and sends its payload. decide()
// computes the norm of all parts, and commit() lets the payloads go on.
//
//   norm    sqrt(sum over parts of c^2 sum_squares), with c the part's own factor: 1 unless the
//           caller has clipped parts separately
//   clip    min(1, max_norm / (norm + 1e-6)), as in torch.nn.utils.clip_grad_norm_
//
// Norm modes: exact       payloads wait for decide() before their host work;
//             speculative payloads go on at once with last step's factor, into spare state
//             (Forecast).
// Both give the same bits.
//
// Invariants, which the tests name:
//   G1  Parts are summed in the order of their numbers, whatever arrived first: equal bits.
//   G2  A dropped step has no payload in the lanes any more, and is not counted.
//   G3  Results of a forecast that did not hold are taken back and computed again.
//   G4  Payloads pass their hold in commit() and nowhere else.
//   G5  A part that gets a gradient after its payload left is taken back and counted, and may be
//       sent again.
//   G6  After a step every part expects the promised number of backwards, or without a promise as
//       many as it had.
//
// Thread safety: one thread at a time.
// Lifetime:      the executor outlives it.
// Source:        clipping by the global norm: Pascanu et al., arXiv 1211.5063.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/adam.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/norm_mode.h"

namespace sluiceway {

struct GradientNorm {
  double norm = 0;  // Over all parts.
  bool finite = true;
};

struct StepOutcome {
  bool skipped = false;    // The gradient was not finite; only kept residuals changed weights.
  double grad_norm = 0;    // Norm of factor * gradient, before max_norm.
  float clip_factor = 1;   // From max_norm; callers multiply their other gradients by it too.
  int residuals_kept = 0;  // In a skipped step: weights whose residual trained in the backward.
};

// The values with which a payload was computed before its step was decided.
struct Forecast {
  AdamHyper adam{};
  float factor = 1;

  // The learning rate is not part of a direction, so it may differ.
  bool holds(const AdamHyper& hyper, float true_factor) const noexcept;
};

class StepGate {
 public:
  struct Options {
    NormChoice norm = NormChoice::kAuto;
    double max_norm = 0;         // 0: no clipping.
    int promised_backwards = 0;  // Micro-batches per step; 0: as many as in the last step.
  };

  StepGate(const Options& options, Order order, Executor& executor, int part_count);

  // ---- While a step's gradient is gathered ----
  // Call before a part changes. Returns whether its payload had left and was taken back.
  bool take_back(int part);
  void note_gradient(int part);
  void note_scan(int part, const ScanResult& scan);
  void forget_scan(int part) { at(part).scanned = false; }  // The gradient has changed.
  void send(int part, Payload payload, std::optional<Forecast> forecast = {});

  int backwards(int part) const { return at(part).backwards; }
  int expected(int part) const { return at(part).expected; }
  bool is_scanned(int part) const { return at(part).scanned; }
  // Returns whether the part was scanned and holds only zeros of either sign.
  bool is_zero(int part) const { return is_scanned(part) && at(part).scan.abs_max == 0.0F; }
  bool is_complete(int part) const { return backwards(part) >= expected(part); }
  bool gathering() const noexcept;     // The lanes have payloads of a step not yet committed.
  bool has_gradient() const noexcept;  // A gradient was added since the last commit() or drop().
  // Returns whether wait(part) would wait for the step being gathered, whose payloads are held.
  bool holds_back(int part) const;
  // Every part with a gradient must be scanned. `part_factors` has one factor per part, or is
  // empty.
  GradientNorm norm(std::span<const float> part_factors = {}) const;
  // Returns the scan of a part's gradient as it was added; for a part without one, an empty scan.
  ScanResult scan(int part) const { return backwards(part) > 0 ? at(part).scan : ScanResult{}; }

  bool speculative() const noexcept { return norm_mode_.speculative(); }
  float forecast_factor() const noexcept { return forecast_factor_; }

  // ---- The step ----
  // `factor` applies to all parts; `part_factors` may add one for each.
  StepOutcome decide(float factor, double other_sum_squares,
                     std::span<const float> part_factors = {}) const;
  // Returns whether this part's payload is in the lanes and was computed with these values.
  bool still_holds(int part, const AdamHyper& adam, float factor);
  // Lets the payloads go on and counts the step. `factor` becomes the next forecast. Returns the
  // parts that had a gradient.
  std::vector<int> commit(float factor);
  void drop();             // Forgets the gradients added.
  void forget() noexcept;  // Like drop(), for an executor that has failed and runs nothing.

  // Changes when work is done, but no bit of the result. `make_room` allocates memory for
  // speculative work and returns false if there is none.
  void tune(const EngineLanes& lanes, const std::function<bool()>& make_room);

  // ---- State ----
  std::int64_t committed_steps() const noexcept { return committed_steps_; }
  void set_committed_steps(std::int64_t steps);    // InvalidArgument: below 0.
  void expect_backwards(int part, int backwards);  // Used where no number was promised.
  std::uint64_t take_recalled() noexcept;          // Payloads taken back since the last call.

 private:
  struct Part {
    int backwards = 0;  // Micro-batches added.
    int expected = 1;   // The payload leaves after this many.
    bool scanned = false;
    bool sent = false;
    ScanResult scan{};
    std::optional<Forecast> forecast;
  };
  const Part& at(int part) const { return parts_.at(static_cast<std::size_t>(part)); }
  Part& at(int part) { return parts_.at(static_cast<std::size_t>(part)); }
  static void clear(Part& part) noexcept;

  Options options_;
  Order order_;
  Executor& executor_;
  NormModeChooser norm_mode_;
  std::vector<Part> parts_;
  std::int64_t committed_steps_ = 0;
  float forecast_factor_ = 1;  // The forecast never predicts clipping.
  bool redone_ = false;        // In the current step.
  std::uint64_t recalled_ = 0;
};

}  // namespace sluiceway
