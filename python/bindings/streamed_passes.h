// The passes of an engine that streams perturbed weights, for the files that bind one.
//
// `Held` has the engine, its device, and, by use, tensors of the shape and type that a forward
// reads: device, engine and weights.
#pragma once

#include <ATen/ops/from_blob.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/tensor_view.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/weight_ring.h"

namespace sluiceway {

template <typename Held>
struct PassDeleter {
  pid_t opened_in = getpid();
  void operator()(Held* held) const {
    if (getpid() != opened_in) return;  // A forked child has none of its threads.
    const GilReleased unlocked;
    delete held;
  }
};
template <typename Held>
using PassHolder = std::unique_ptr<Held, PassDeleter<Held>>;

inline constexpr const char* kRingDoc =
    "resident_room: bytes of weights that may stay on the device. depth: modules on their way.";

// The keywords of every engine that streams perturbed weights, but for `depth` and its noise.
template <typename Options>
KeywordRows<Options> ring_keywords() {
  KeywordRows<Options> rows =
      lane_keywords<Options>([](Options& o) -> EngineLanes::Options& { return o.ring.lanes; });
  const KeywordRows<Options> own = {
      {"resident_room", [](Options& o, std::uint64_t bytes) { o.ring.resident_room = bytes; }},
      {"perturb_lanes", [](Options& o, int count) { o.ring.perturb_lanes = count; }},
      {"device_cpu", [](Options& o, int cpu) { o.ring.device_cpu = cpu; }},
      {"lane_cpu", [](Options& o, int cpu) { o.ring.lane_cpu = cpu; }},
      {"eps", &Options::eps},
  };
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

// Each is (lr, weight_decay).
inline std::vector<StepRate> step_rates(const std::vector<std::pair<double, double>>& rates) {
  std::vector<StepRate> each;
  for (const auto& [lr, decay] : rates) each.push_back({lr, decay});
  return each;
}

template <typename Held>
at::Tensor acquire_slot(Held& held, int use, int direction, bool minus, const StreamRef& compute) {
  const void* elements = nullptr;
  {
    const GilReleased unlocked;
    elements = held.engine.acquire(use, direction, minus ? Side::kMinus : Side::kPlus, compute);
  }
  const at::Tensor& weight = held.weights.at(static_cast<std::size_t>(use));
  const at::Device device =
      held.device.is_host()
          ? at::Device(at::kCPU)
          : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(held.device.ordinal()));
  return at::from_blob(const_cast<void*>(elements), weight.sizes(),
                       at::TensorOptions().dtype(weight.dtype()).device(device));
}

template <typename Held>
Stats take_pass_stats(Held& held) {
  Stats stats = stats_of(held.engine.take_use(), 0.0);
  stats["disk_read_bytes"] = held.engine.take_disk_read();
  return stats;
}

template <typename Held>
void def_passes(py::class_<Held, PassHolder<Held>>& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine.def_property_readonly("streams", [](const Held& held) { return held.engine.streams(); })
      .def(
          "begin_step", [](Held& held) { held.engine.begin_step(); }, unlocked)
      .def(
          "begin_evaluation", [](Held& held) { held.engine.begin_evaluation(); }, unlocked)
      .def("acquire", &acquire_slot<Held>, py::arg("use"), py::arg("direction"), py::arg("minus"),
           py::arg("compute"),
           "The slot itself, as a tensor: its elements last until release(). Of an evaluation both "
           "sides are theta.")
      .def(
          "release",
          [](Held& held, int use, int direction, const StreamRef& compute) {
            held.engine.release(use, direction, compute);
          },
          py::arg("use"), py::arg("direction"), py::arg("compute"), unlocked)
      .def(
          "finish", [](Held& held) { held.engine.finish(); }, unlocked,
          "End the pass, if there is one; a step that was not committed is as if it had not begun.")
      .def("take_stats", &take_pass_stats<Held>)
      .def(
          "enable_trace",
          [](Held& held, bool on, const std::string& path) {
            enable_trace(held.engine.trace(), on, path);
          },
          py::arg("on"), py::arg("path") = "",
          "With the path that write_trace() will be given, events are kept on that disk until "
          "then.")
      .def(
          "write_trace",
          [](Held& held, const std::string& path) { held.engine.trace().write_json(path); },
          py::arg("path"), "Of all rings, those before a new base too.");
}

}  // namespace sluiceway
