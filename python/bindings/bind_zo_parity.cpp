#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <tuple>

#include "python/bindings/dtype_name.h"
#include "python/bindings/noise_family.h"
#include "python/bindings/streamed_passes.h"
#include "runtime/engine/zo/parity_engine.h"

namespace sluiceway {
namespace {

// The engine, and the storage that it writes to; nothing of Python.
struct WrittenEngine {
  explicit WrittenEngine(const ParityOptions& options)
      : device(options.ring.lanes.device), engine(options) {}

  DeviceId device;
  std::vector<at::Tensor> masters;
  std::vector<at::Tensor> likes;  // Of the shape and type that a forward reads.
  std::vector<ZoWeight> held;
  std::vector<at::Tensor> weights;  // By use, of `likes`.
  ParityEngine engine;
};

// Name, master in host memory, parameter group, and a tensor like what a forward reads.
using Weight = std::tuple<std::string, at::Tensor, int, at::Tensor>;
// Number of a weight, number of the module, and whether it stays on the device.
using Use = std::tuple<std::size_t, int, bool>;

const Keywords<ParityOptions>& keywords() {
  using O = ParityOptions;
  using std::string;
  static const Keywords<O> keywords(
      "ZoParityEngine", ring_keywords<O>(),
      {
          {"wire",
           [](O& o, const string& name) {
             if (!name.empty()) o.wire = parse_form(name);
           }},
          {"depth", [](O& o, int depth) { o.ring.depth = ring_depth(depth, !o.wire); }},
          {"family", [](O& o, const string& name) { o.masters.family = parse_family(name); }},
          {"seed", [](O& o, std::uint64_t seed) { o.masters.run_seed = seed; }},
          {"threads", [](O& o, int threads) { o.masters.threads = threads; }},
          {"groups", &O::groups},
          {"directions", &O::directions},
      });
  return keywords;
}

void hold(WrittenEngine& written, const std::vector<Weight>& weights) {
  std::vector<at::Tensor> masters, likes;
  std::vector<ZoWeight> held;
  for (const auto& [name, master, group, like] : weights) {
    check_host(master, name.c_str());
    SLUICEWAY_CHECK(master.is_contiguous() && master.sizes() == like.sizes(), name, ": is ",
                    master.sizes(), " with strides ", master.strides(), ", expected contiguous ",
                    like.sizes());
    masters.push_back(master.detach());
    likes.push_back(like.detach());
    ZoWeight& made = held.emplace_back();
    made.name = name;
    made.elements = master.numel();
    made.form = dtype_of_tensor(master, name.c_str());
    made.computed = dtype_of_tensor(like, name.c_str());
    made.group = group;
    made.host = masters.back().const_data_ptr();
  }
  written.engine.hold(held);
  written.masters = std::move(masters);
  written.likes = std::move(likes);
  written.held = std::move(held);
}

void stream(WrittenEngine& written, const std::vector<Use>& uses) {
  std::vector<at::Tensor> weights;
  std::vector<ZoWeight> streamed;
  for (const auto& [number, module, keep] : uses) {
    SLUICEWAY_CHECK(number < written.held.size(), "stream: weight ", number, ", expected below ",
                    written.held.size());
    ZoWeight& use = streamed.emplace_back(written.held[number]);
    use.module = module;
    use.keep = keep;
    weights.push_back(written.likes[number]);
  }
  {
    const GilReleased unlocked;
    written.engine.stream(std::move(streamed));
  }
  written.weights = std::move(weights);
}

void commit(WrittenEngine& written, const std::vector<float>& g,
            const std::vector<std::pair<double, double>>& rates) {
  const std::vector<StepRate> each = step_rates(rates);
  const GilReleased unlocked;
  written.engine.commit(g, each);
}

void bind_snapshot(py::module_& m) {
  const auto unlocked = py::call_guard<GilReleased>();
  py::class_<MasterSnapshot, std::shared_ptr<MasterSnapshot>>(
      m, "ZoSnapshot",
      "The masters at one step, for another thread to read while steps go on. Weights are given by "
      "their number in hold().")
      .def_property_readonly("step", &MasterSnapshot::step)
      .def("wait", &MasterSnapshot::wait, py::arg("weight"), unlocked,
           "Wait until its master is of the step; it stays so until let_go().")
      .def("let_go", &MasterSnapshot::let_go, py::arg("weight"), unlocked,
           "End the reading of a weight. An error says that others may have written to it.")
      .def("close", &MasterSnapshot::let_go_of_all, unlocked, "End the reading of all weights.");
}

void def_snapshots(py::class_<WrittenEngine, PassHolder<WrittenEngine>>& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine
      .def(
          "begin_snapshot", [](WrittenEngine& written) { return written.engine.begin_snapshot(); },
          unlocked, "Begin a snapshot of next_step, which the passes complete; one at a time.")
      .def(
          "drop_snapshot", [](WrittenEngine& written) { written.engine.drop_snapshot(); }, unlocked,
          "Drop the last snapshot, which nobody reads any more.")
      .def(
          "finish_snapshot",
          [](WrittenEngine& written, std::optional<double> seconds) {
            using Milliseconds = std::chrono::duration<double, std::milli>;
            if (!seconds) return written.engine.finish_snapshot();
            const Milliseconds most(std::max(0.0, *seconds) * 1e3);
            return written.engine.finish_snapshot(
                std::chrono::duration_cast<std::chrono::milliseconds>(most));
          },
          py::arg("seconds") = py::none(), unlocked,
          "Wait at most `seconds` until it was read; return True if it was. Needs no further "
          "pass.");
}

}  // namespace

void bind_zo_parity(py::module_& m) {
  const auto unlocked = py::call_guard<GilReleased>();
  bind_snapshot(m);
  const std::string doc =
      keywords().listed() + ". " + kLanesDoc + " " + kRingDoc +
      " threads: how many write steps in host memory. wire: type in which float32 masters cross "
      "the link, or fp8, for images of them; empty: as they are.";
  py::class_<WrittenEngine, PassHolder<WrittenEngine>> engine(
      m, "ZoParityEngine",
      "Streams perturbed weights from host memory, and writes each step into them.");
  engine
      .def(py::init([](const StreamRef& compute, const py::kwargs& given) {
             ParityOptions options = options_on(compute, keywords(), given);
             options.ring.lanes.check_interrupt = signal_check();
             const GilReleased free;
             return PassHolder<WrittenEngine>(new WrittenEngine(options));
           }),
           py::kw_only(), py::arg("compute"), doc.c_str())
      .def("hold", &hold, py::arg("weights"),
           "Take all trained weights, once: name, master in host memory, parameter group, and a "
           "tensor of the shape and type that a forward reads.")
      .def("stream", &stream, py::arg("uses"),
           "Each is the number of a weight that is held, number of the module, and whether it "
           "stays on the device; in the order of the forward.")
      .def("commit", &commit, py::arg("g"), py::arg("rates"),
           "Make the step, one (lr, weight_decay) a group, and end the pass.")
      .def(
          "flush", [](WrittenEngine& written) { written.engine.flush(); }, unlocked,
          "Bring masters to next_step; nothing moves until the next pass begins.")
      .def(
          "restart",
          [](WrittenEngine& written, std::uint64_t step) { written.engine.restart(step); },
          py::arg("step"), unlocked, "Declare that masters are of this step.")
      .def_property_readonly(
          "is_passing", [](const WrittenEngine& written) { return written.engine.is_passing(); })
      .def_property_readonly(
          "next_step", [](const WrittenEngine& written) { return written.engine.next_step(); });
  def_snapshots(engine);
  def_passes(engine);
}

}  // namespace sluiceway
