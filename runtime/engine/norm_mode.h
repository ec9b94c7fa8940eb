// Decides when the host work of a step may start: after the global norm is known, or at once.
//
// Auto (docs/schedule.md section 3) is exact while the cost model predicts that host and upload
// work hide behind the forward; otherwise speculative while few steps are clipped; otherwise exact.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/schedule/cost_model.h"

namespace sluiceway {

enum class NormChoice : std::uint8_t { kAuto, kExact, kSpeculative };
NormChoice parse_norm_choice(std::string_view name);  // "auto", "exact", "speculative"

class NormModeChooser {
 public:
  // Under Order::kBarrier host work waits for the whole step anyway, so the mode is always exact.
  NormModeChooser(NormChoice choice, Order order) : choice_(choice), order_(order) {
    if (choice == NormChoice::kSpeculative && order != Order::kBarrier) speculative_ = true;
  }

  bool speculative() const noexcept { return speculative_; }

  // Call once per committed step. `redone`: clipping or scaling made the forecast factor wrong.
  void note_step(bool redone) noexcept;
  // Returns whether the next step should be speculative, given this step's measured times.
  bool prefers_speculative(const std::vector<LayerCost>& costs, const LanePlan& lanes) const;
  void set_speculative(bool on) noexcept { speculative_ = on; }
  bool decides() const noexcept {
    return choice_ == NormChoice::kAuto && order_ != Order::kBarrier;
  }

 private:
  static constexpr double kMaxRedoneRate = 0.1;    // Above it, redoing costs more than waiting.
  static constexpr double kWorthwhileGain = 1.02;  // Stays exact while exact costs less than this.
  NormChoice choice_;
  Order order_;
  bool speculative_ = false;
  double redone_rate_ = 0;  // Exponential mean over about 50 steps.
};

}  // namespace sluiceway
