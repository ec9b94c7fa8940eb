// How Python holds an engine, and what every engine's class has; shared by the files that bind one.
#pragma once

#include <pybind11/stl.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/bindings.h"
#include "python/bindings/gil.h"
#include "python/bindings/keywords.h"
#include "python/bindings/signal_check.h"
#include "python/bindings/tensor_view.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/gated_engine.h"
#include "runtime/engine/norm_mode.h"
#include "runtime/engine/step_gate.h"

namespace sluiceway {

// A forked child has the engine's memory but not its threads: it must not try to join them. An
// engine with a lane that still runs is kept for good, since that lane uses it.
struct EngineDeleter {
  pid_t opened_in = getpid();
  void operator()(GatedEngine* engine) const;
};

template <typename Engine>
using EngineHolder = std::unique_ptr<Engine, EngineDeleter>;
template <typename Engine>
using EngineClass = py::class_<Engine, GatedEngine, EngineHolder<Engine>>;

using LimitOfTier = std::array<std::optional<std::uint64_t>, kTierCount>;

inline constexpr const char* kLanesDoc =
    "link: d2h GB/s, h2d GB/s, latency in us, 0 for unthrottled. limits: bytes for device, host, "
    "pinned, disk, None for no limit.";

inline Budget::Limits limits_of(const LimitOfTier& given) {
  Budget::Limits limits;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    limits[tier] = given[tier].value_or(Budget::kUnlimited);
  }
  return limits;
}

// The keywords of every engine; `lanes` returns a reference to the options of its lanes.
template <typename Options, typename Lanes>
KeywordRows<Options> lane_keywords(Lanes lanes) {
  return {
      {"link",
       [lanes](Options& o, const std::array<double, 3>& link) {
         lanes(o).d2h = {link[0], link[2]};
         lanes(o).h2d = {link[1], link[2]};
       }},
      {"limits",
       [lanes](Options& o, const LimitOfTier& limits) { lanes(o).limits = limits_of(limits); }},
      {"resident_bytes",
       [lanes](Options& o, std::uint64_t bytes) { lanes(o).resident_bytes = bytes; }},
  };
}

// The keywords of every engine with a step gate, whose lanes it schedules.
template <typename Options>
KeywordRows<Options> gate_keywords() {
  KeywordRows<Options> rows =
      lane_keywords<Options>([](Options& o) -> EngineLanes::Options& { return o.lanes; });
  const KeywordRows<Options> own = {
      {"schedule", [](Options& o, const std::string& name) { o.lanes.order = parse_order(name); }},
      {"norm_mode",
       [](Options& o, const std::string& name) { o.gate.norm = parse_norm_choice(name); }},
      {"max_norm", [](Options& o, double norm) { o.gate.max_norm = norm; }},
      {"promised_backwards", [](Options& o, int count) { o.gate.promised_backwards = count; }},
      {"lane_threads", &Options::host_threads},
      {"device_cpu", &Options::device_cpu},
      {"lane_cpu", &Options::lane_cpu},
  };
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

// Options for the device of a stream, from the keywords of a constructor.
template <typename Options>
Options options_on(const StreamRef& compute, const Keywords<Options>& keywords,
                   const py::kwargs& given) {
  Options options(compute.device());
  keywords.set(options, given);
  return options;
}

inline std::vector<AnyMatrix> views_of(const std::vector<Tensor>& weights) {
  std::vector<AnyMatrix> out;
  out.reserve(weights.size());
  for (const Tensor& weight : weights) out.push_back(matrix_view(weight, "weight"));
  return out;
}

inline std::tuple<double, bool> norm_tuple(const GradientNorm& norm) {
  return {norm.norm, norm.finite};
}

using Stats = py::typing::Dict<py::str, py::object>;

inline py::dict by_tier(const Budget::Limits& bytes) {
  py::dict result;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    result[py::str(std::string(to_string(static_cast<Tier>(tier))))] = bytes[tier];
  }
  return result;
}

// The counts that every engine's take_stats() has.
inline Stats stats_of(const EngineUse& use, double host_seconds) {
  Stats result;
  result["d2h_bytes"] = use.d2h_bytes;
  result["h2d_bytes"] = use.h2d_bytes;
  result["stall_seconds"] = use.stall_seconds;
  result["host_seconds"] = host_seconds;
  result["used_bytes"] = by_tier(use.used);
  result["peak_bytes"] = by_tier(use.peak);
  return result;
}

}  // namespace sluiceway
