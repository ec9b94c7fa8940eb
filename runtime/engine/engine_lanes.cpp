#include "runtime/engine/engine_lanes.h"

#include <cstddef>
#include <utility>

namespace sluiceway {

EngineLanes::EngineLanes(const Options& options, const std::vector<LaneSpec>& lanes,
                         const LanePlan& plan, int key_count)
    : device_(options.device),
      plan_(plan),
      key_count_(key_count),
      budget_(options.limits),
      resident_(budget_.reserve(Tier::kDevice, options.resident_bytes, "the model")),
      device_row_(trace_.add_row("device")),
      d2h_(options.device, LinkDirection::kDeviceToHost, options.d2h),
      h2d_(options.device, LinkDirection::kHostToDevice, options.h2d) {
  Executor::Config config;
  config.plan = plan;
  config.key_count = key_count;
  config.order = options.order;
  config.trace = &trace_;
  config.check_interrupt = options.check_interrupt;
  streams_.reserve(lanes.size());  // The executor holds their addresses.
  for (const LaneSpec& lane : lanes) {
    // What the next forward waits for goes before the rest of the device's work.
    const bool first = static_cast<LaneId>(streams_.size()) == plan.device_lane;
    const Stream::Options thread{"sw-" + lane.name, lane.cpu,
                                 first ? Stream::Priority::kHigh : Stream::Priority::kDefault};
    streams_.push_back(lane.runs == LaneSpec::Runs::kOnDevice
                           ? Stream::owned(options.device, thread)
                           : Stream::host(thread));
    config.lanes.push_back({lane.name, &streams_.back(), lane.depth, trace_.add_row(lane.name)});
  }
  executor_ = std::make_unique<Executor>(std::move(config));
}

Stream& EngineLanes::compute(StreamRef compute) {
  if (compute_ref_ != compute) {
    compute_ = Stream::borrowed(compute);
    compute_ref_ = compute;
  }
  return *compute_;
}

double EngineLanes::acquire(int key, StreamRef compute) {
  if (compute.is_host()) return wait(key);
  this->compute(compute).wait(executor_->completion(key));
  return 0;
}

double EngineLanes::wait(int key) {
  const double begin_us = now_us();
  const double stall = executor_->wait(key);
  if (stall > 0 && trace_.enabled()) trace_.add_range(device_row_, "stall", begin_us, now_us());
  stall_seconds_ += stall;
  return stall;
}

void EngineLanes::note_device_times(double forward_s, double backward_s) {
  forward_s_ = forward_s;
  backward_s_ = backward_s;
}

std::vector<LayerCost> EngineLanes::measured_costs() const {
  const double count = static_cast<double>(key_count_);
  std::vector<LayerCost> costs;
  costs.reserve(static_cast<std::size_t>(key_count_));
  for (int key = 0; key < key_count_; ++key) {
    costs.push_back({forward_s_ / count, backward_s_ / count, executor_->last_seconds(key)});
  }
  return costs;
}

EngineUse EngineLanes::take_use() {
  EngineUse use;
  const std::uint64_t d2h = d2h_.bytes();
  const std::uint64_t h2d = h2d_.bytes();
  use.d2h_bytes = d2h - std::exchange(counted_d2h_, d2h);
  use.h2d_bytes = h2d - std::exchange(counted_h2d_, h2d);
  use.stall_seconds = std::exchange(stall_seconds_, 0);
  use.lane_seconds = executor_->take_use().seconds;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    use.used[tier] = budget_.used(static_cast<Tier>(tier));
    use.peak[tier] = budget_.peak(static_cast<Tier>(tier));
  }
  return use;
}

void EngineLanes::stop() noexcept { executor_.reset(); }

}  // namespace sluiceway
