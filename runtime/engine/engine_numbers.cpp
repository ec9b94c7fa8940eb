// What SubspaceEngine measures, and the choices it makes from that.
#include <algorithm>
#include <utility>

#include "kernels/base/error.h"
#include "runtime/engine/lane_ids.h"
#include "runtime/engine/subspace_engine.h"

namespace sluiceway {
namespace {

constexpr std::int64_t kTuneEvery = 16;  // Steps between two looks at the measured times.

}  // namespace

void SubspaceEngine::note_device_times(double forward_s, double backward_s) {
  forward_s_ = forward_s;
  backward_s_ = backward_s;
}

std::vector<LayerCost> SubspaceEngine::measured_costs() const {
  const double count = static_cast<double>(slots_.size());
  std::vector<LayerCost> costs;
  costs.reserve(slots_.size());
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    costs.push_back(
        {forward_s_ / count, backward_s_ / count, executor_->last_seconds(static_cast<int>(i))});
  }
  return costs;
}

// Nothing here changes a bit of the result, only when work is done.
void SubspaceEngine::tune_schedule(bool redone) {
  norm_mode_.note_step(redone);
  if (committed_steps_ % kTuneEvery != 0 || forward_s_ + backward_s_ <= 0) return;
  const std::vector<LayerCost> costs = measured_costs();
  if (options_.order == Order::kPaper) {
    const int layer = transition_layer(costs, kLanePlan);
    executor_->set_transition(static_cast<std::uint64_t>(layer));
  }
  if (!norm_mode_.decides()) return;
  bool speculative = norm_mode_.prefers_speculative(costs);
  if (speculative) {
    try {
      ensure_spares();
    } catch (const OutOfMemory&) {
      speculative = false;  // The budget decides: waiting for the norm costs time, not memory.
    }
  }
  norm_mode_.set_speculative(speculative);
}

void SubspaceEngine::ensure_spares() {
  for (const auto& slot : slots_) {
    if (slot->spec.tier == CoreTier::kHost && !slot->has_spare()) {
      slot->add_spare(options_.device, budget_);
    }
  }
}

EngineStats SubspaceEngine::take_stats() {
  EngineStats stats = stats_;
  const std::uint64_t d2h = d2h_.bytes();
  const std::uint64_t h2d = h2d_.bytes();
  stats.d2h_bytes = d2h - std::exchange(counted_d2h_, d2h);
  stats.h2d_bytes = h2d - std::exchange(counted_h2d_, h2d);
  stats.host_seconds = executor_->take_use().seconds[kHostLane];
  if (bias_count_ > 0) stats.bias_mean = bias_sum_ / static_cast<double>(bias_count_);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    stats.used[tier] = budget_.used(static_cast<Tier>(tier));
    stats.peak[tier] = budget_.peak(static_cast<Tier>(tier));
  }
  for (const auto& slot : slots_) stats.held_bytes += slot->held_bytes();
  stats.speculative = norm_mode_.speculative();
  stats_ = {};
  bias_sum_ = 0;
  bias_count_ = 0;
  return stats;
}

}  // namespace sluiceway
