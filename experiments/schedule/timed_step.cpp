#include "experiments/schedule/timed_step.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "experiments/schedule/four_lanes.h"
#include "runtime/device/event_state.h"
#include "runtime/device/stream.h"
#include "runtime/schedule/executor.h"

namespace sluiceway::experiment {
namespace {

using Clock = std::chrono::steady_clock;

// Timers wake a thread some tens of microseconds late. The thread's next wait is shorter by that
// time, so waits have the right length on average.
void take(double seconds) {
  thread_local std::chrono::nanoseconds late{0};
  const auto wanted =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  const Clock::time_point end = Clock::now() + wanted - std::min(late, wanted);
  std::this_thread::sleep_until(end);
  late = Clock::now() - end;
}

class TimedStep {
 public:
  TimedStep(const std::vector<LayerCost>& layers, Order order, NormBarrier barrier)
      : layers_(layers), barrier_(barrier) {
    streams_.reserve(kLaneNames.size());
    Executor::Config config;
    for (const char* name : kLaneNames) {
      streams_.push_back(Stream::host({.name = name}));
      config.lanes.push_back({.name = name, .stream = &streams_.back()});
    }
    config.plan = kLanePlan;
    config.key_count = static_cast<int>(layers.size());
    config.order = order;
    config.transition = static_cast<std::uint64_t>(transition_layer(layers, kLanePlan));
    executor_.emplace(config);
  }

  // Returns the time at which the backward ended.
  Clock::time_point run() {
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      executor_->wait(static_cast<int>(l));
      take(layers_[l].forward);
    }
    for (std::size_t l = layers_.size(); l-- > 0;) {
      take(layers_[l].backward);
      executor_->submit(payload(l));
    }
    executor_->release();
    return Clock::now();
  }

  // Works as run(), with `device` doing the work that this thread launches.
  Clock::time_point launch(Stream& device, Launching launching) {
    done_.resize(layers_.size());
    const auto enqueue = [&](double seconds) {
      take(launching.launch_s);
      device.enqueue([seconds](StreamRef) { take(seconds); });
    };
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      if (launching.waiter == Waiter::kThread) {
        executor_->acquire(static_cast<int>(l), device);
      } else {
        device.wait(Event(done_[l]));
      }
      enqueue(layers_[l].forward);
    }
    for (std::size_t l = layers_.size(); l-- > 0;) {
      enqueue(layers_[l].backward);
      executor_->wait(
          static_cast<int>(l));  // A hook does so before it changes the weight's records.
      Payload p = payload(l);
      p.after = device.record();
      const auto done = done_[l] = std::make_shared<HostEvent>();
      p.hops.back().run = [apply = p.hops.back().run, done](StreamRef ref) {
        apply(ref);
        done->set();
      };
      executor_->submit(std::move(p));
    }
    device.synchronize();
    executor_->release();
    return Clock::now();
  }

  void drain() { executor_->drain(); }

 private:
  Payload payload(std::size_t layer) const {
    Payload p;
    p.key = static_cast<int>(layer);
    p.deadline = layer;
    p.name = "layer" + std::to_string(layer);
    for (std::size_t lane = 0; lane < kLaneNames.size(); ++lane) {
      const auto id = static_cast<LaneId>(lane);
      if (barrier_ == NormBarrier::kExact && id == kHostLane) p.hold_before = p.hops.size();
      const double seconds = layers_[layer].lanes[lane];
      if (seconds > 0) p.hops.push_back({id, [seconds](StreamRef) { take(seconds); }});
    }
    return p;
  }

  const std::vector<LayerCost>& layers_;
  const NormBarrier barrier_;
  std::vector<Stream> streams_;  // Declared before the executor, so that they outlive it.
  std::optional<Executor> executor_;
  std::vector<std::shared_ptr<HostEvent>> done_;  // By layer; set when its last update was applied.
};

std::vector<double> seconds_of(int steps, const std::function<Clock::time_point()>& step) {
  std::vector<double> seconds;
  Clock::time_point before = step();
  for (int i = 0; i < steps; ++i) {
    const Clock::time_point end = step();
    seconds.push_back(std::chrono::duration<double>(end - before).count());
    before = end;
  }
  return seconds;
}

}  // namespace

std::vector<double> run_timed_steps(const std::vector<LayerCost>& layers, Order order,
                                    NormBarrier barrier, int steps) {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // The streams' threads have the same slack.
  TimedStep step(layers, order, barrier);
  std::vector<double> seconds = seconds_of(steps, [&] { return step.run(); });
  step.drain();
  return seconds;
}

std::vector<double> run_launched_steps(const std::vector<LayerCost>& layers, Launching launching,
                                       int steps) {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  Stream device = Stream::host({.name = "device"});
  TimedStep step(layers, Order::kEdf, NormBarrier::kNone);
  std::vector<double> seconds = seconds_of(steps, [&] { return step.launch(device, launching); });
  step.drain();
  return seconds;
}

}  // namespace sluiceway::experiment
