// Measures a step of the executor against the cost model, and the orders against each other.
//
//   schedule_experiment [--steps 7] [--sets 20000] [--out results.json]
//
// Timed: 32 layers, equal and unequal, three ratios, norm barrier off and on, four orders.
// Launched: the extra cost of a step if the launching thread, not the device, waits for updates.
// Simulated: edf against the best other order on random sets of layers, by their spread.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "experiments/schedule/four_lanes.h"
#include "experiments/schedule/timed_step.h"
#include "kernels/base/check.h"

namespace sluiceway::experiment {
namespace {

using Json = nlohmann::ordered_json;

constexpr Order kAllOrders[] = {Order::kBarrier, Order::kFcfs, Order::kPaper, Order::kEdf};
constexpr NormBarrier kBothBarriers[] = {NormBarrier::kNone, NormBarrier::kExact};
constexpr double kMs = 1e-3;

const char* to_string(NormBarrier barrier) {
  return barrier == NormBarrier::kNone ? "none" : "exact";
}

class Dice {  // Draws the same with every standard library.
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(engine_() >> 11) * 0x1p-53;
  }

 private:
  std::mt19937_64 engine_;
};

struct Ratio {
  const char* name;
  LayerCost mean;
};

const Ratio kRatios[] = {
    {"link-bound", {1.0 * kMs, 2.0 * kMs, {4.0 * kMs, 1.5 * kMs, 3.5 * kMs, 0.3 * kMs}}},
    {"host-bound", {1.0 * kMs, 2.0 * kMs, {1.5 * kMs, 4.0 * kMs, 1.5 * kMs, 0.3 * kMs}}},
    {"compute-bound", {1.5 * kMs, 3.0 * kMs, {2.0 * kMs, 2.0 * kMs, 2.0 * kMs, 0.3 * kMs}}},
};

// `spread`: how far layers differ in size, which all hops of a layer share; `jitter`: how far a
// hop differs from its layer's size.
std::vector<LayerCost> layers_like(const LayerCost& mean, int count, double spread, double jitter,
                                   Dice& dice) {
  std::vector<LayerCost> layers(static_cast<std::size_t>(count), mean);
  for (LayerCost& layer : layers) {
    const double size = dice.between(1 - spread, 1 + spread);
    const auto scale = [&](double& part) { part *= size * dice.between(1 - jitter, 1 + jitter); };
    scale(layer.forward);
    scale(layer.backward);
    for (double& part : layer.lanes) scale(part);
  }
  return layers;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// Time that the busiest resource waits before its first unit of a step and after its last; for
// unequal layers, that of the mean layer.
double pipeline_fill(const std::vector<LayerCost>& layers) {
  double device = 0, chain = 0, busiest_hop = 0;
  for (std::size_t lane = 0; lane < layers.front().lanes.size(); ++lane) {
    double sum = 0;
    for (const LayerCost& layer : layers) sum += layer.lanes[lane];
    busiest_hop = std::max(busiest_hop, sum);
    chain += sum;
  }
  for (const LayerCost& layer : layers) device += layer.forward + layer.backward;
  const double count = static_cast<double>(layers.size());
  if (device >= busiest_hop) return chain / count;
  return (device + chain - busiest_hop) / count;
}

double largest_chain(const std::vector<LayerCost>& layers) {  // o + u + h
  double largest = 0;
  for (const LayerCost& layer : layers) {
    largest =
        std::max(largest, layer.lanes[kD2hLane] + layer.lanes[kHostLane] + layer.lanes[kH2dLane]);
  }
  return largest;
}

Json measure(const Ratio& ratio, const char* kind, const std::vector<LayerCost>& layers,
             NormBarrier barrier, Order order, int steps) {
  const std::vector<double> seconds = run_timed_steps(layers, order, barrier, steps);
  const double predicted =
      predict_makespan(layers, kLanePlan, order, barrier, transition_layer(layers, kLanePlan));
  const double measured = median(seconds);
  return {{"layers", kind},
          {"ratio", ratio.name},
          {"norm_barrier", to_string(barrier)},
          {"order", sluiceway::to_string(order)},
          {"measured_s", measured},
          {"predicted_s", predicted},
          {"measured_to_predicted", measured / predicted},
          {"lower_bound_s", lower_bound(layers)},
          {"pipeline_fill_s", pipeline_fill(layers)},
          {"largest_chain_s", largest_chain(layers)},
          {"steps_s", seconds}};
}

Json measure_all(int steps) {
  Json rows = Json::array();
  for (const Ratio& ratio : kRatios) {
    Dice dice(7);
    const auto equal = layers_like(ratio.mean, 32, 0, 0, dice);
    const auto unequal = layers_like(ratio.mean, 32, 0.5, 0.1, dice);
    for (const bool same : {true, false}) {
      for (const NormBarrier barrier : kBothBarriers) {
        for (const Order order : kAllOrders) {
          rows.push_back(measure(ratio, same ? "equal" : "unequal", same ? equal : unequal, barrier,
                                 order, steps));
          std::cerr << rows.back()["layers"] << ' ' << ratio.name << ' ' << to_string(barrier)
                    << ' ' << sluiceway::to_string(order) << ": measured "
                    << rows.back()["measured_s"] << " s, predicted " << rows.back()["predicted_s"]
                    << " s\n";
        }
      }
    }
  }
  return rows;
}

// Turns of both waiters alternate, so that a busy spell of the machine hits both.
Json measure_waiters(int steps) {
  Json rows = Json::array();
  for (const Ratio& ratio : kRatios) {
    Dice dice(7);
    const auto layers = layers_like(ratio.mean, 32, 0, 0, dice);
    for (const double launch_s : {0.05 * kMs, 0.2 * kMs}) {
      std::vector<double> thread, device;
      for (int turn = 0; turn < 3; ++turn) {
        for (const Waiter waiter : {Waiter::kThread, Waiter::kDevice}) {
          auto& into = waiter == Waiter::kThread ? thread : device;
          const auto seconds = run_launched_steps(layers, {launch_s, waiter}, steps);
          into.insert(into.end(), seconds.begin(), seconds.end());
        }
      }
      rows.push_back({{"ratio", ratio.name},
                      {"launch_s", launch_s},
                      {"thread_waits_s", median(thread)},
                      {"device_waits_s", median(device)},
                      {"thread_to_device", median(thread) / median(device)},
                      {"thread_steps_s", thread},
                      {"device_steps_s", device}});
      std::cerr << ratio.name << " launch " << launch_s << " s: the thread waits " << median(thread)
                << " s, the device waits " << median(device) << " s\n";
    }
  }
  return rows;
}

// Compares edf with the best of the other orders in the model.
Json rank_orders(int low, int high, double spread, double jitter, int sets) {
  Json rows = Json::array();
  for (const NormBarrier barrier : kBothBarriers) {
    Dice dice(11);
    double worst = 0, sum = 0;
    int lost = 0, beyond = 0;
    for (int i = 0; i < sets; ++i) {
      const int count = low + static_cast<int>(dice.between(0, high - low + 1));
      const double forward = dice.between(0.3, 3);
      LayerCost mean{forward, forward * dice.between(1.5, 3), {}};
      for (LaneId lane = 0; lane < kApplyLane; ++lane) mean.lanes.push_back(dice.between(0.1, 4));
      mean.lanes.push_back(dice.between(0, 0.3));
      const auto layers = layers_like(mean, count, spread, jitter, dice);
      const int transition = transition_layer(layers, kLanePlan);
      double best = predict_makespan(layers, kLanePlan, Order::kBarrier, barrier, transition);
      for (const Order order : {Order::kFcfs, Order::kPaper}) {
        best = std::min(best, predict_makespan(layers, kLanePlan, order, barrier, transition));
      }
      const double loss =
          predict_makespan(layers, kLanePlan, Order::kEdf, barrier, transition) / best - 1;
      worst = std::max(worst, loss);
      sum += loss;
      if (loss > 1e-9) ++lost;
      if (loss > 0.03) ++beyond;
    }
    rows.push_back({{"least_layers", low},
                    {"most_layers", high},
                    {"spread", spread},
                    {"jitter", jitter},
                    {"norm_barrier", to_string(barrier)},
                    {"sets", sets},
                    {"edf_lost", lost},
                    {"edf_lost_by_more_than_3_percent", beyond},
                    {"edf_worst_loss", worst},
                    {"edf_mean_loss", sum / sets}});
  }
  return rows;
}

Json rank_all(int sets) {
  Json rows = Json::array();
  const auto add = [&](int low, int high, double spread, double jitter) {
    for (Json& row : rank_orders(low, high, spread, jitter, sets)) rows.push_back(std::move(row));
  };
  add(32, 32, 0, 0);
  add(32, 32, 0.5, 0.1);
  add(16, 64, 0.5, 0.1);
  add(16, 64, 0.75, 0.3);
  add(4, 15, 0.5, 0.1);
  return rows;
}

int number(const std::string& flag, const char* text) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  SLUICEWAY_CHECK(*text != '\0' && *end == '\0' && value > 0 && value <= 1000000,
                  "schedule_experiment: ", flag, " is ", text, ", expected 1 to 1000000");
  return static_cast<int>(value);
}

int run(int argc, char** argv) {
  int steps = 7, sets = 20000;
  std::string out_path;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    SLUICEWAY_CHECK(i + 1 < argc, "schedule_experiment: ", flag, " has no value, expected one");
    if (flag == "--steps") {
      steps = number(flag, argv[i + 1]);
    } else if (flag == "--sets") {
      sets = number(flag, argv[i + 1]);
    } else if (flag == "--out") {
      out_path = argv[i + 1];
    } else {
      throw_invalid_argument(
          concat("schedule_experiment: flag is ", flag, ", expected --steps, --sets or --out"));
    }
  }
  const Json results = {{"steps", steps},
                        {"timed", measure_all(steps)},
                        {"launched", measure_waiters(steps)},
                        {"model", rank_all(sets)}};
  if (out_path.empty()) {
    std::cout << results.dump(1) << '\n';
  } else {
    std::ofstream out(out_path);
    out << results.dump(1) << '\n';
    SLUICEWAY_CHECK(out.good(), "schedule_experiment: cannot write ", out_path);
  }
  return 0;
}

}  // namespace
}  // namespace sluiceway::experiment

int main(int argc, char** argv) {
  try {
    return sluiceway::experiment::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
