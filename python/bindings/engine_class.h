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
#include "runtime/engine/norm_mode.h"
#include "runtime/engine/step_gate.h"
#include "runtime/trace/trace.h"

namespace sluiceway {

inline void enable_trace(Trace& trace, bool on, const std::string& path) {
  if (on && !path.empty()) trace.spill_beside(path);
  trace.enable(on);
}

// A forked child has the engine's memory but not its threads: it must not try to join them. An
// engine with a lane that still runs is kept for good, since that lane uses it.
template <typename Engine>
struct EngineDeleter {
  pid_t opened_in = getpid();
  void operator()(Engine* engine) const {
    if (getpid() != opened_in) return;
    const GilReleased unlocked;
    try {
      engine->finish();
    } catch (...) {
      return;
    }
    delete engine;
  }
};

template <typename Engine>
using EngineHolder = std::unique_ptr<Engine, EngineDeleter<Engine>>;
template <typename Engine>
using EngineClass = py::class_<Engine, EngineHolder<Engine>>;

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

inline std::vector<AnyMatrix> views_of(const std::vector<at::Tensor>& weights) {
  std::vector<AnyMatrix> out;
  out.reserve(weights.size());
  for (const at::Tensor& weight : weights) out.push_back(matrix_view(weight, "weight"));
  return out;
}

// Storage that a lane may still write to when nobody waits for it any more is never freed. Not by
// the tensors of Python: torch aborts where those outlive the interpreter.
inline void keep_for_good(const std::vector<at::Tensor>& lent) {
  auto* const kept = new std::vector<at::Tensor>;
  for (const at::Tensor& tensor : lent) kept->push_back(tensor.detach());
}

template <typename Engine>
void close_engine(Engine& engine, const std::vector<at::Tensor>& lent) {
  try {
    const GilReleased unlocked;
    engine.close();
  } catch (const Timeout&) {
    if (!engine.idle()) keep_for_good(lent);
    throw;
  }
}

template <typename Engine>
void finish_engine(Engine& engine, const std::vector<at::Tensor>& lent) {
  try {
    const GilReleased unlocked;
    engine.finish();
  } catch (...) {
    keep_for_good(lent);
    throw;
  }
}

template <typename Engine>
std::vector<std::pair<double, float>> gradient_sizes(Engine& engine) {
  std::vector<std::pair<double, float>> sizes;
  for (std::size_t i = 0; i < engine.size(); ++i) {
    const ScanResult scan = engine.gradient_scan(static_cast<int>(i));
    sizes.emplace_back(scan.sum_squares, scan.abs_max);
  }
  return sizes;
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

// What the Python side asks of every engine, but for gradients and steps.
template <typename Engine>
void bind_common(EngineClass<Engine>& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine.def("__len__", &Engine::size)
      .def("gradient_sizes", &gradient_sizes<Engine>, unlocked,
           "Sum of squares and largest absolute element of each weight's gradient so far; after "
           "end_backward(). Neither is finite where the gradient is not.")
      .def("has_gradient", &Engine::has_gradient)
      .def("drop", &Engine::drop, unlocked)
      .def(
          "wait",
          [](Engine& e, int weight, const StreamRef& compute) { e.acquire(weight, compute); },
          py::arg("weight"), py::arg("compute"), unlocked,
          "Work on `compute` that is enqueued from now on sees the last update. The thread "
          "waits: on the host device until it is made, on a CUDA device until it is enqueued.")
      .def("synchronize", &Engine::synchronize, unlocked)
      .def("finish", &finish_engine<Engine>, py::arg("lent"),
           "As close(), whatever failed before; raises only where a lane still runs.")
      .def_property("committed_steps", &Engine::committed_steps, &Engine::set_committed_steps)
      .def("note_device_times", &Engine::note_device_times, py::arg("forward_s"),
           py::arg("backward_s"))
      .def(
          "enable_trace",
          [](Engine& e, bool on, const std::string& path) { enable_trace(e.trace(), on, path); },
          py::arg("on"), py::arg("path") = "",
          "With the path that write_trace() will be given, events are kept on that disk until "
          "then.")
      .def(
          "add_trace_range",
          [](Engine& e, const std::string& row, const std::string& name, double begin_us,
             double end_us) {
            e.trace().add_range(e.trace().add_row(row), name, begin_us, end_us);
          },
          py::arg("row"), py::arg("name"), py::arg("begin_us"), py::arg("end_us"))
      .def(
          "write_trace", [](Engine& e, const std::string& path) { e.trace().write_json(path); },
          py::arg("path"));
}

}  // namespace sluiceway
