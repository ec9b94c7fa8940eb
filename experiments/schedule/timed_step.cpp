#include "experiments/schedule/timed_step.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "runtime/device/stream.h"
#include "runtime/schedule/executor.h"

namespace sluiceway::experiment {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<double LayerCost::*, kLaneCount> kHopCost = {
    &LayerCost::d2h, &LayerCost::host, &LayerCost::h2d, &LayerCost::apply};

// Timers wake a thread some tens of microseconds late; the thread's next wait is shorter by that,
// so that waits last what they should on average.
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
    for (const Lane lane : kLanes) {
      streams_.push_back(Stream::host({.name = std::string(to_string(lane))}));
    }
    Executor::Config config;
    for (std::size_t i = 0; i < kLaneCount; ++i) config.streams[i] = &streams_[i];
    config.layer_count = static_cast<int>(layers.size());
    config.order = order;
    config.transition_layer = transition_layer(layers);
    executor_.emplace(config);
  }

  // Returns when the backward ended.
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

  void drain() { executor_->drain(); }

 private:
  Payload payload(std::size_t layer) const {
    Payload p;
    p.layer = static_cast<int>(layer);
    p.name = "layer" + std::to_string(layer);
    if (barrier_ == NormBarrier::kExact) p.hold_before = Lane::kHost;
    for (const Lane lane : kLanes) {
      const double seconds = layers_[layer].*kHopCost[index(lane)];
      if (seconds > 0) p.tasks[index(lane)] = [seconds](StreamRef) { take(seconds); };
    }
    return p;
  }

  const std::vector<LayerCost>& layers_;
  const NormBarrier barrier_;
  std::vector<Stream> streams_;  // Before the executor: they outlive it.
  std::optional<Executor> executor_;
};

}  // namespace

std::vector<double> run_timed_steps(const std::vector<LayerCost>& layers, Order order,
                                    NormBarrier barrier, int steps) {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);  // As the streams' threads have it.
  TimedStep step(layers, order, barrier);
  std::vector<double> seconds;
  Clock::time_point before = step.run();
  for (int i = 0; i < steps; ++i) {
    const Clock::time_point end = step.run();
    seconds.push_back(std::chrono::duration<double>(end - before).count());
    before = end;
  }
  step.drain();
  return seconds;
}

}  // namespace sluiceway::experiment
