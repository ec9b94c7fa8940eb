#include "runtime/schedule/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <span>

#include "kernels/base/check.h"
#include "runtime/schedule/step_plan.h"

namespace sluiceway {
namespace {

double sum(const std::vector<LayerCost>& layers, double LayerCost::*part) {
  double total = 0;
  for (const LayerCost& layer : layers) total += layer.*part;
  return total;
}

double sum(const std::vector<LayerCost>& layers, std::size_t lane) {
  double total = 0;
  for (const LayerCost& layer : layers) total += layer.lanes[lane];
  return total;
}

// Returns the number of lanes, which every layer must have.
std::size_t lane_count(const char* function, const std::vector<LayerCost>& layers) {
  const std::size_t count = layers.empty() ? 0 : layers[0].lanes.size();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    SLUICEWAY_CHECK(layers[l].lanes.size() == count, function, ": layer ", l, " has times for ",
                    layers[l].lanes.size(), " lanes, expected ", count, ", the number for layer 0");
  }
  return count;
}

void check_times(const std::vector<LayerCost>& layers) {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto check = [&](double seconds) {
      SLUICEWAY_CHECK(std::isfinite(seconds) && seconds >= 0, "predict_makespan: layer ", l,
                      " has a cost of ", seconds, " s, expected a finite number of at least 0 s");
    };
    check(layers[l].forward);
    check(layers[l].backward);
    for (const double seconds : layers[l].lanes) check(seconds);
  }
}

// Returns when each layer's backward ends, measured from the start of the backward.
std::vector<double> submissions(const std::vector<LayerCost>& layers) {
  std::vector<double> at(layers.size());
  double now = 0;
  for (std::size_t l = layers.size(); l-- > 0;) at[l] = now += layers[l].backward;
  return at;
}

// Passes all layers through one lane: one payload at a time, always the lowest rank of those
// present. `at` holds when each layer reaches the lane, and on return when it leaves.
void pass_lane(const std::vector<LayerCost>& layers, std::size_t lane, std::span<const Rank> ranks,
               std::vector<double>& at) {
  std::vector<std::size_t> by_arrival;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].lanes[lane] > 0) by_arrival.push_back(l);  // The others pass at once.
  }
  std::sort(by_arrival.begin(), by_arrival.end(), [&](std::size_t a, std::size_t b) {
    return at[a] != at[b] ? at[a] < at[b] : ranks[a] < ranks[b];
  });
  const auto later = [&](std::size_t a, std::size_t b) { return ranks[b] < ranks[a]; };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(later)> ready(later);
  double now = 0;
  for (std::size_t next = 0; next < by_arrival.size() || !ready.empty();) {
    if (ready.empty()) now = std::max(now, at[by_arrival[next]]);
    while (next < by_arrival.size() && at[by_arrival[next]] <= now) ready.push(by_arrival[next++]);
    const std::size_t layer = ready.top();
    ready.pop();
    at[layer] = now += layers[layer].lanes[lane];
  }
}

void delay_until(double time, std::vector<double>& at) {
  for (double& t : at) t = std::max(t, time);
}

double latest(const std::vector<double>& at) { return *std::max_element(at.begin(), at.end()); }

}  // namespace

// A forward waits for the payload of every layer, so the lanes are empty when a backward starts:
// all steps are equal, and the makespan is the time from one backward to the next.
double predict_makespan(const std::vector<LayerCost>& layers, const LanePlan& lanes, Order order,
                        NormBarrier barrier, int transition) {
  const std::size_t lane_total = lane_count("predict_makespan", layers);
  check_times(layers);
  if (layers.empty()) return 0;
  const StepPlan plan{order, static_cast<std::uint64_t>(transition), lanes};
  std::vector<double> at = submissions(layers);
  const double released = at.front();
  std::vector<Rank> ranks(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    ranks[l] = plan.rank(0, l, layers.size() - l);
  }
  for (std::size_t lane = 0; lane < lane_total; ++lane) {
    const auto id = static_cast<LaneId>(lane);
    if (plan.gate() == id) delay_until(std::max(released, latest(at)), at);
    if (barrier == NormBarrier::kExact && lanes.gather_before == id) delay_until(released, at);
    pass_lane(layers, lane, ranks, at);
  }
  double now = released;
  if (plan.forward_waits_for_all()) now = std::max(now, latest(at));
  for (std::size_t l = 0; l < layers.size(); ++l) now = std::max(now, at[l]) + layers[l].forward;
  return now;
}

int transition_layer(const std::vector<LayerCost>& layers, const LanePlan& lanes) {
  const std::size_t lane_total = lane_count("transition_layer", layers);
  if (layers.empty()) return 0;
  const double count = static_cast<double>(layers.size());
  double chain = 0, slowest = 0;  // o + u + h, and s.
  for (std::size_t lane = 0; lane < lane_total; ++lane) {
    if (lanes.device_lane == static_cast<LaneId>(lane)) continue;
    const double mean = sum(layers, lane) / count;
    chain += mean;
    slowest = std::max(slowest, mean);
  }
  const double backward = sum(layers, &LayerCost::backward);
  if (slowest <= 0) return 0;  // Every layer finishes before the backward ends.
  // Layers whose payload finishes before the backward ends; only whole layers count.
  const double through = std::floor((backward - chain) / slowest);
  return static_cast<int>(std::clamp(count - through, 0.0, count));
}

double lower_bound(const std::vector<LayerCost>& layers) {
  double bound = sum(layers, &LayerCost::forward) + sum(layers, &LayerCost::backward);
  const std::size_t lane_total = lane_count("lower_bound", layers);
  for (std::size_t lane = 0; lane < lane_total; ++lane) bound = std::max(bound, sum(layers, lane));
  return bound;
}

}  // namespace sluiceway
