#include "runtime/engine/engine_lanes.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "runtime/device/stream_backend.h"
#include "runtime/device/time_mark.h"

namespace sluiceway {
namespace {

// A lane's stream that times every task.
class TimedStream final : public StreamBackend {
 public:
  TimedStream(Stream stream, StallClock& clock) : stream_(std::move(stream)), clock_(clock) {}

  void enqueue(Stream::Task task, Stream::Done done) override {
    stream_.enqueue([&clock = clock_, task = std::move(task)](
                        StreamRef ref) { clock.time_work(ref, [&] { task(ref); }); },
                    std::move(done));
  }
  void wait(const Event& event) override { stream_.wait(event); }
  Event record() override { return stream_.record(); }
  void synchronize() override { stream_.synchronize(); }
  DeviceId device() const noexcept override { return stream_.device(); }
  bool waits_on_device() const noexcept override { return stream_.device_waits_for(stream_); }

 private:
  Stream stream_;
  StallClock& clock_;
};

}  // namespace

EngineLanes::EngineLanes(const Options& options, const std::vector<LaneSpec>& lanes,
                         const LanePlan& plan, int key_count)
    : device_(options.device),
      plan_(plan),
      order_(options.order),
      check_interrupt_(options.check_interrupt),
      key_count_(key_count),
      budget_(options.budget ? *options.budget : Budget(options.limits)),
      resident_(budget_.reserve(Tier::kDevice, options.resident_bytes, "the model")),
      trace_(options.trace ? options.trace : std::make_shared<Trace>()),
      device_row_(trace_->add_row("device")),
      d2h_(options.links_of ? options.links_of->d2h_
                            : std::make_shared<LinkCopy>(
                                  options.device, LinkDirection::kDeviceToHost, options.d2h)),
      h2d_(options.links_of ? options.links_of->h2d_
                            : std::make_shared<LinkCopy>(
                                  options.device, LinkDirection::kHostToDevice, options.h2d)) {
  if (!device_.is_host()) stall_clock_.emplace([this] { return make_time_mark(device_); });
  Executor::Config config;
  config.plan = plan;
  config.key_count = key_count;
  config.order = options.order;
  config.trace = trace_.get();
  config.check_interrupt = options.check_interrupt;
  streams_.reserve(lanes.size());  // The executor holds their addresses.
  for (const LaneSpec& lane : lanes) {
    const auto id = static_cast<LaneId>(streams_.size());
    const LinkCopy& link = lane.crosses == LinkDirection::kDeviceToHost ? *d2h_ : *h2d_;
    const Stream::Options thread{
        .name = "sw-" + lane.name,
        .cpu = lane.cpu,
        .priority = lane.is_urgent ? Stream::Priority::kHigh : Stream::Priority::kDefault,
        .own_thread = lane.crosses.has_value() && link.is_paced(),
        .threads = lane.threads};
    streams_.push_back(lane.runs == LaneSpec::Runs::kOnDevice
                           ? Stream::owned(options.device, thread)
                           : Stream::host(thread));
    if (stall_clock_ && id == plan.device_lane) {
      streams_.back() =
          Stream::over(std::make_unique<TimedStream>(std::move(streams_.back()), *stall_clock_));
    }
    config.lanes.push_back({lane.name, &streams_.back(), lane.depth, trace_->add_row(lane.name)});
  }
  executor_ = std::make_unique<Executor>(std::move(config));
}

EngineLanes::Options EngineLanes::beside() const {
  Options options(device_);
  options.links_of = this;
  options.budget = budget_;
  options.trace = trace_;
  options.order = order_;
  options.check_interrupt = check_interrupt_;
  return options;
}

Stream& EngineLanes::compute(StreamRef compute) {
  const std::lock_guard lock(compute_mutex_);
  compute_ref_ = compute;
  const auto known = std::find_if(borrowed_.begin(), borrowed_.end(),
                                  [&](const auto& each) { return each.first == compute; });
  if (known != borrowed_.end()) return *known->second;
  auto stream = std::make_unique<Stream>(Stream::borrowed(compute));
  return *borrowed_.emplace_back(compute, std::move(stream)).second;
}

void EngineLanes::acquire(int key, StreamRef compute) {
  if (compute.is_host()) return wait(key);
  if (!executor_->moves(key)) return;
  Stream& stream = this->compute(compute);
  stall_clock_->time_wait(compute, [&] { executor_->acquire(key, stream); });
}

void EngineLanes::wait(int key) {
  if (!stall_clock_) {
    const double begin_us = now_us();
    const double stall = executor_->wait(key);
    if (stall > 0 && trace_->enabled()) trace_->add_range(device_row_, "stall", begin_us, now_us());
    stall_seconds_ += stall;
    return;
  }
  std::optional<StreamRef> compute;
  {
    const std::lock_guard lock(compute_mutex_);
    compute = compute_ref_;
  }
  if (compute && executor_->moves(key)) {
    stall_clock_->time_wait(*compute, [&] { executor_->wait(key); });
  } else {  // The wait costs the device nothing, or nobody has computed yet.
    executor_->wait(key);
  }
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
  const std::uint64_t d2h = d2h_->bytes();
  const std::uint64_t h2d = h2d_->bytes();
  use.d2h_bytes = d2h - std::exchange(counted_d2h_, d2h);
  use.h2d_bytes = h2d - std::exchange(counted_h2d_, h2d);
  use.stall_seconds = stall_clock_ ? stall_clock_->take() : std::exchange(stall_seconds_, 0);
  use.lane_seconds = executor_->take_use().seconds;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    use.used[tier] = budget_.used(static_cast<Tier>(tier));
    use.peak[tier] = budget_.peak(static_cast<Tier>(tier));
  }
  return use;
}

void EngineLanes::stop() noexcept { executor_.reset(); }

}  // namespace sluiceway
