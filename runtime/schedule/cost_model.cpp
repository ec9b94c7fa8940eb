#include "runtime/schedule/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <queue>
#include <span>

#include "kernels/base/check.h"
#include "runtime/schedule/step_plan.h"

namespace sluiceway {
namespace {

constexpr std::array<double LayerCost::*, kLaneCount> kHopCost = {
    &LayerCost::d2h, &LayerCost::host, &LayerCost::h2d, &LayerCost::apply};

double sum(const std::vector<LayerCost>& layers, double LayerCost::*part) {
  double total = 0;
  for (const LayerCost& layer : layers) total += layer.*part;
  return total;
}

void check_costs(const std::vector<LayerCost>& layers) {
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerCost& c = layers[l];
    for (const double seconds : {c.forward, c.backward, c.d2h, c.host, c.h2d, c.apply}) {
      SLUICEWAY_CHECK(std::isfinite(seconds) && seconds >= 0, "predict_makespan: layer ", l,
                      " has a cost of ", seconds, " s, expected a finite number of at least 0 s");
    }
  }
}

// When each layer's backward ends, from the start of the backward.
std::vector<double> submissions(const std::vector<LayerCost>& layers) {
  std::vector<double> at(layers.size());
  double now = 0;
  for (std::size_t l = layers.size(); l-- > 0;) at[l] = now += layers[l].backward;
  return at;
}

// One lane: at most one payload at a time, the lowest rank of those that are there. `at` says when
// each layer reaches the lane, and on return when it leaves.
void pass_lane(const std::vector<LayerCost>& layers, double LayerCost::*cost,
               std::span<const Rank> ranks, std::vector<double>& at) {
  std::vector<std::size_t> by_arrival;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (layers[l].*cost > 0) by_arrival.push_back(l);  // The others pass at once.
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
    at[layer] = now += layers[layer].*cost;
  }
}

void delay_until(double time, std::vector<double>& at) {
  for (double& t : at) t = std::max(t, time);
}

double latest(const std::vector<double>& at) { return *std::max_element(at.begin(), at.end()); }

}  // namespace

// A forward waits for the payload of every layer, so the lanes are empty when a backward starts:
// all steps are alike, and the time from one backward to the next is the makespan.
double predict_makespan(const std::vector<LayerCost>& layers, Order order, NormBarrier barrier,
                        int transition) {
  check_costs(layers);
  if (layers.empty()) return 0;
  const StepPlan plan{order, transition};
  std::vector<double> at = submissions(layers);
  const double released = at.front();
  std::vector<Rank> ranks(layers.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    ranks[l] = plan.rank(0, static_cast<int>(l), layers.size() - l);
  }
  for (const Lane lane : kLanes) {
    if (plan.gathers_before(lane)) delay_until(std::max(released, latest(at)), at);
    if (barrier == NormBarrier::kExact && lane == Lane::kHost) delay_until(released, at);
    pass_lane(layers, kHopCost[index(lane)], ranks, at);
  }
  double now = released;
  if (plan.forward_waits_for_all()) now = std::max(now, latest(at));
  for (std::size_t l = 0; l < layers.size(); ++l) now = std::max(now, at[l]) + layers[l].forward;
  return now;
}

int transition_layer(const std::vector<LayerCost>& layers) {
  if (layers.empty()) return 0;
  const double count = static_cast<double>(layers.size());
  const double o = sum(layers, &LayerCost::d2h) / count;
  const double u = sum(layers, &LayerCost::host) / count;
  const double h = sum(layers, &LayerCost::h2d) / count;
  const double s = std::max({o, u, h});
  const double backward = sum(layers, &LayerCost::backward);
  if (s <= 0) return 0;  // Every layer is through before the backward ends.
  // Layers whose payload is through before the backward ends; only whole ones are.
  const double through = std::floor((backward - (o + u + h)) / s);
  return static_cast<int>(std::clamp(count - through, 0.0, count));
}

double lower_bound(const std::vector<LayerCost>& layers) {
  double bound = sum(layers, &LayerCost::forward) + sum(layers, &LayerCost::backward);
  for (double LayerCost::*hop : kHopCost) bound = std::max(bound, sum(layers, hop));
  return bound;
}

}  // namespace sluiceway
