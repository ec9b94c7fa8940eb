// Decides what becomes of a step: whether it is skipped, by how much it is clipped, what is sent to
// the lanes before that is known, and what of it has to be done again.
//
// A step's gradient comes in parts, one a key of the executor: the engine adds to a part in each
// backward, scans it after the last, and sends its payload. decide() takes the norm of all parts,
// commit() lets the payloads go on.
//
//   norm    sqrt(sum over parts of c^2 sum_squares), c the part's own factor, 1 unless the caller
//           has clipped parts apart
//   clip    min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ has it
//
// Norm modes: exact       payloads wait before work on the host for decide();
//             speculative they go on at once with last step's factor, into spare state (Forecast).
// Both give the same bits.
//
// Invariants, which the tests name:
//   G1  Parts are summed in the order of their numbers, whatever arrived first: equal bits.
//   G2  A step that is dropped has no payload in the lanes any more, and is not counted.
//   G3  What was computed from a forecast that did not hold is taken back and done again.
//   G4  Payloads pass their hold in commit() and nowhere else.
//   G5  A part that gets a gradient after its payload left is taken back and counted, and may be
//       sent again.
//   G6  After a step every part expects as many backwards as were promised, else as it had.
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
  double norm = 0;  // Of all parts together.
  bool finite = true;
};

struct StepOutcome {
  bool skipped = false;    // The gradient was not finite, and nothing of the step is committed.
  double grad_norm = 0;    // Of factor * gradient, before max_norm.
  float clip_factor = 1;   // What max_norm asks for; others multiply their gradients with it too.
  int residuals_kept = 0;  // Of a skipped step: weights that their residual trained in backward.
};

// With what a payload was computed before its step was decided.
struct Forecast {
  AdamHyper adam{};
  float factor = 1;

  // The learning rate is no part of a direction, so it may differ.
  bool holds(const AdamHyper& hyper, float true_factor) const noexcept;
};

class StepGate {
 public:
  struct Options {
    NormChoice norm = NormChoice::kAuto;
    double max_norm = 0;         // 0: nothing is clipped.
    int promised_backwards = 0;  // Micro-batches a step; 0: as many as in the last step.
  };

  StepGate(const Options& options, Order order, Executor& executor, int part_count);

  // ---- While a step's gradient is gathered ----
  // Call before a part changes. Whether its payload had left and was taken back.
  bool take_back(int part);
  void note_gradient(int part);
  void note_scan(int part, const ScanResult& scan);
  void send(int part, Payload payload, std::optional<Forecast> forecast = {});

  int backwards(int part) const { return at(part).backwards; }
  int expected(int part) const { return at(part).expected; }
  bool is_scanned(int part) const { return at(part).scanned; }
  // Scanned, and nothing in it but zeros of either sign.
  bool is_zero(int part) const { return is_scanned(part) && at(part).scan.abs_max == 0.0F; }
  bool is_complete(int part) const { return backwards(part) >= expected(part); }
  bool gathering() const noexcept;     // Payloads of a step that is not committed are in the lanes.
  bool has_gradient() const noexcept;  // Something was added since the last commit() or drop().
  // Whether wait(part) would wait for the very step that is being gathered, which is held.
  bool holds_back(int part) const;
  // Every part with a gradient is scanned. `part_factors` has one factor a part, or is empty.
  GradientNorm norm(std::span<const float> part_factors = {}) const;
  // Of a part's gradient as it was added; of a part without one it is that of nothing.
  ScanResult scan(int part) const { return backwards(part) > 0 ? at(part).scan : ScanResult{}; }

  bool speculative() const noexcept { return norm_mode_.speculative(); }
  float forecast_factor() const noexcept { return forecast_factor_; }

  // ---- The step ----
  // `factor` is that of all parts, beside which each may have one of its own.
  StepOutcome decide(float factor, double other_sum_squares,
                     std::span<const float> part_factors = {}) const;
  // Whether this part's payload is in the lanes and what it was computed with holds.
  bool still_holds(int part, const AdamHyper& adam, float factor);
  // Lets the payloads go on and counts the step; `factor` is what the next forecast will be.
  // Returns the parts that had a gradient.
  std::vector<int> commit(float factor);
  void drop();             // Forgets what was added.
  void forget() noexcept;  // drop(), of an executor that has failed and runs nothing.

  // Changes when work is done, never a bit of the result. `make_room` gets memory for speculative
  // work; false: there is none.
  void tune(const EngineLanes& lanes, const std::function<bool()>& make_room);

  // ---- State ----
  std::int64_t committed_steps() const noexcept { return committed_steps_; }
  void set_committed_steps(std::int64_t steps);    // InvalidArgument: below 0.
  void expect_backwards(int part, int backwards);  // Where no number was promised.
  std::uint64_t take_recalled() noexcept;          // Payloads taken back since the last call.

 private:
  struct Part {
    int backwards = 0;  // Micro-batches added.
    int expected = 1;   // After how many the payload leaves.
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
  float forecast_factor_ = 1;  // That a step will be clipped is not forecast.
  bool redone_ = false;        // In the step at hand.
  std::uint64_t recalled_ = 0;
};

}  // namespace sluiceway
