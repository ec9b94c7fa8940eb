// The zeroth-order engine of either mode, and the snapshots that mode write_back reads.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings/dtype_name.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/held_arena.h"
#include "python/bindings/noise_family.h"
#include "python/bindings/store_calls.h"
#include "python/bindings/tensor_view.h"
#include "runtime/engine/zo/zo_engine.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {
namespace {

// Name, weight and parameter group.
using Trained = std::tuple<std::string, Tensor, int>;
// Mode log: name, weight, parameter group, number of the module, whether it stays on the device,
// and its number in the arena, or -1: the tensor is the base, and not only like it.
using Use = std::tuple<std::string, Tensor, int, int, bool, int>;
// Mode write_back: name, master in host memory, parameter group, and a tensor like what a forward
// reads; and of a use: number of a weight, number of the module, and whether it stays.
using Master = std::tuple<std::string, Tensor, int, Tensor>;
using MasterUse = std::tuple<std::size_t, int, bool>;

ZoEngineOptions with_trained(ZoEngineOptions options, const std::vector<Trained>& trained,
                             std::vector<Tensor>& vectors) {
  for (const auto& [name, weight, group] : trained) {
    StreamedWeight& made = options.trained.emplace_back();
    made.name = name;
    made.elements = weight.numel();
    made.form = dtype_of_tensor(weight, name.c_str());
    made.group = group;
    if (weight.dim() >= 2) made.rows = weight.size(0);
    if (made.rows > 0) continue;
    vectors.push_back(weight.call("detach").call("cpu").call("contiguous").call("clone"));
    made.host = vectors.back().data();
  }
  return options;
}

// The engine, and the tensors that it streams and writes to.
struct StreamedEngine {
  StreamedEngine(const ZoEngineOptions& options, HeldArenaPtr base, std::vector<Tensor> bases)
      : device(options.ring.lanes.device),
        arena(std::move(base)),
        vectors(std::move(bases)),
        engine(options) {}

  DeviceId device;
  HeldArenaPtr arena;           // Null: the base is in host memory.
  std::vector<Tensor> vectors;  // Bases of vectors with low-rank noise.
  std::vector<Tensor> masters;
  std::vector<Tensor> likes;         // By master: of the shape and type that a forward reads.
  std::vector<StreamedWeight> held;  // By master.
  std::vector<Tensor> weights;       // By use: of the shape and type that a forward reads.
  std::vector<Tensor> coming;        // The same of a ring that is being made.
  ZoEngine engine;
};

struct Deleter {
  pid_t opened_in = getpid();
  void operator()(StreamedEngine* held) const {
    if (getpid() != opened_in) return;  // A forked child has none of its threads.
    const GilReleased unlocked;
    delete held;
  }
};
using Holder = std::unique_ptr<StreamedEngine, Deleter>;
using Class = py::class_<StreamedEngine, Holder>;

// Page-locked for the device of `compute`, of exactly its size.
Tensor page_locked_copy(const Tensor& tensor, const StreamRef& compute) {
  static Budget& budget = *new Budget(Budget::unlimited());  // Tensors may outlive every static.
  const Tensor whole = tensor.call("detach");
  const ElementType type = element_type(dtype_of_tensor(whole, "a weight"));
  const auto held = [&] {
    const GilReleased unlocked;  // To lock pages takes long.
    return std::make_shared<Buffer>(budget, Tier::kPinned, compute.device(), whole.nbytes(),
                                    "a weight", Fill::kNone);
  }();
  Tensor copy = tensor_over(held->data(), whole.shape(), type, DeviceId::host(), held);
  copy.object().attr("copy_")(py::reinterpret_borrow<py::object>(whole.object()));
  return copy;
}

Base base_of(const std::string& hash) {
  Base base;
  SLUICEWAY_CHECK(hash.size() == base.hash.size(), "base_hash: has ", hash.size(),
                  " bytes, expected ", base.hash.size());
  std::memcpy(base.hash.data(), hash.data(), hash.size());
  return base;
}

std::uint32_t log_directions(const std::string& path) {
  const LogFile file(path, Access::kRead, std::chrono::milliseconds(0));
  return decode_log_header(file.read(0, kLogHeaderBytes)).shape.directions;
}

ZoMode parse_mode(const std::string& name) {
  SLUICEWAY_CHECK(name == "log" || name == "write_back", "ZoEngine: mode is \"", name,
                  "\", expected log or write_back");
  return name == "log" ? ZoMode::kLog : ZoMode::kWriteBack;
}

KeywordRows<ZoEngineOptions> common_keywords() {
  using O = ZoEngineOptions;
  KeywordRows<O> rows =
      lane_keywords<O>([](O& o) -> EngineLanes::Options& { return o.ring.lanes; });
  const KeywordRows<O> own = {
      {"resident_room", [](O& o, std::uint64_t bytes) { o.ring.resident_room = bytes; }},
      {"perturb_lanes", [](O& o, int count) { o.ring.copy_lanes = count; }},
      {"device_cpu", [](O& o, int cpu) { o.ring.device_cpu = cpu; }},
      {"lane_cpu", [](O& o, int cpu) { o.ring.lane_cpu = cpu; }},
      {"eps", &O::eps},
      {"family",
       [](O& o, const std::string& name) {
         o.shape.noise.family = static_cast<std::uint32_t>(parse_family(name));
       }},
      {"seed", [](O& o, std::uint64_t seed) { o.shape.run_seed = seed; }},
      {"groups", [](O& o, std::uint32_t groups) { o.shape.groups = groups; }},
      {"directions", [](O& o, std::uint32_t count) { o.shape.directions = count; }},
  };
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

const Keywords<ZoEngineOptions>& keywords(ZoMode mode) {
  using O = ZoEngineOptions;
  using std::string;
  static const Keywords<O> log(
      "ZoEngine", common_keywords(),
      {
          {"depth", [](O& o, int depth) { o.ring.depth = ring_depth(depth, false); }},
          {"rank", [](O& o, std::uint32_t rank) { o.shape.noise.rank = rank; }},
          {"period", [](O& o, std::uint32_t steps) { o.shape.noise.period_steps = steps; }},
          {"log", [](O& o, const string& path) { o.log_path = path; }},
      });
  static const Keywords<O> write_back(
      "ZoEngine", common_keywords(),
      {
          {"wire",
           [](O& o, const string& name) {
             if (!name.empty()) o.wire = parse_form(name);
           }},
          {"depth", [](O& o, int depth) { o.ring.depth = ring_depth(depth, !o.wire); }},
          {"threads", &O::threads},
      });
  return mode == ZoMode::kLog ? log : write_back;
}

Holder make_engine(const StreamRef& compute, const std::string& mode,
                   const std::vector<Trained>& trained, const py::bytes& base_hash,
                   const HeldArenaPtr& arena, const py::kwargs& given) {
  const ZoMode parsed = parse_mode(mode);
  ZoEngineOptions options = options_on(compute, keywords(parsed), given);
  options.mode = parsed;
  options.ring.lanes.check_interrupt = signal_check();
  if (arena != nullptr) {
    options.arena = arena->arena.get();
  } else if (parsed == ZoMode::kLog) {
    options.base = base_of(base_hash);
  }
  std::vector<Tensor> bases;
  options = with_trained(std::move(options), trained, bases);
  const GilReleased free;
  return Holder(new StreamedEngine(options, arena, std::move(bases)));
}

void hold(StreamedEngine& all, const std::vector<Master>& weights) {
  std::vector<Tensor> masters, likes;
  std::vector<StreamedWeight> held;
  for (const auto& [name, master, group, like] : weights) {
    check_host(master, name.c_str());
    SLUICEWAY_CHECK(master.is_contiguous() && std::ranges::equal(master.shape(), like.shape()),
                    name, ": is ", shape_text(master.shape()), " with strides ",
                    shape_text(master.strides()), ", expected contiguous ",
                    shape_text(like.shape()));
    masters.push_back(master.call("detach"));
    likes.push_back(like.call("detach"));
    StreamedWeight& made = held.emplace_back();
    made.name = name;
    made.elements = master.numel();
    made.form = dtype_of_tensor(master, name.c_str());
    made.computed = dtype_of_tensor(like, name.c_str());
    made.group = group;
    made.host = masters.back().data();
  }
  all.engine.hold(held);
  all.masters = std::move(masters);
  all.likes = std::move(likes);
  all.held = std::move(held);
}

void stream(StreamedEngine& held, std::vector<StreamedWeight> uses, std::vector<Tensor> weights) {
  held.coming = std::move(weights);  // A ring of either may be there when this fails.
  {
    const GilReleased unlocked;
    held.engine.stream(std::move(uses));
  }
  held.weights = std::move(held.coming);
}

void stream_uses(StreamedEngine& held, const std::vector<Use>& uses) {
  std::vector<Tensor> weights;
  std::vector<StreamedWeight> streamed;
  for (const auto& [name, weight, group, module, keep, source] : uses) {
    weights.push_back(weight.call("detach"));
    const void* host = nullptr;
    if (source < 0) {
      check_host(weight, name.c_str());
      SLUICEWAY_CHECK(weight.is_contiguous(), name, ": is not contiguous; call .contiguous()");
      host = weights.back().data();
    }
    streamed.push_back({name, weight.numel(), dtype_of_tensor(weight, name.c_str()), group, module,
                        host, keep, source});
  }
  stream(held, std::move(streamed), std::move(weights));
}

void stream_masters(StreamedEngine& held, const std::vector<MasterUse>& uses) {
  std::vector<Tensor> weights;
  std::vector<StreamedWeight> streamed;
  for (const auto& [number, module, keep] : uses) {
    SLUICEWAY_CHECK(number < held.held.size(), "stream: weight ", number, ", expected below ",
                    held.held.size());
    StreamedWeight& use = streamed.emplace_back(held.held[number]);
    use.module = module;
    use.keep = keep;
    weights.push_back(held.likes[number]);
  }
  stream(held, std::move(streamed), std::move(weights));
}

Tensor acquire(StreamedEngine& held, int use, int round, bool minus, const StreamRef& compute) {
  const void* elements = nullptr;
  {
    const GilReleased unlocked;
    elements = held.engine.acquire(use, round, minus ? Side::kMinus : Side::kPlus, compute);
  }
  const Tensor& weight = held.weights.at(static_cast<std::size_t>(use));
  return tensor_over(const_cast<void*>(elements), weight.shape(), weight.type(), held.device);
}

// Each rate is (lr, weight_decay).
void commit(StreamedEngine& held, const std::vector<float>& g,
            const std::vector<std::pair<double, double>>& rates, bool non_finite) {
  std::vector<StepRate> each;
  for (const auto& [lr, decay] : rates) each.push_back({lr, decay});
  const GilReleased unlocked;
  held.engine.commit(g, each, non_finite);
}

Stats take_stats(StreamedEngine& held) {
  Stats stats = stats_of(held.engine.take_use(), 0.0);
  stats["disk_read_bytes"] = held.engine.take_disk_read();
  return stats;
}

// Seed, step, purpose and scale of each, and Gamma.
using GroupUpdates =
    std::pair<std::vector<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t, float>>, float>;

GroupUpdates pending(const StreamedEngine& held, std::size_t group) {
  const ZoUpdates& all = held.engine.updates();
  GroupUpdates found{{}, all.gamma.at(group)};
  for (const ZoUpdates::Record& record : all.records) {
    const StepNoise& noise = record.noise;
    found.first.emplace_back(noise.seed, noise.step, noise.purpose, record.scale.at(group));
  }
  return found;
}

void consolidate(StreamedEngine& held, std::uint64_t step, const py::bytes& run_state,
                 const py::object& progress) {
  const std::string run = run_state;
  const ZoArena::Progress report = reporter_of(progress);
  const GilReleased unlocked;  // `report` is not copied without it.
  ZoArena::Consolidation how;
  how.step = step;
  how.run_state = std::as_bytes(std::span(run));
  how.progress = [&](std::uint64_t done, std::uint64_t all) { report(done, all); };
  held.engine.consolidate(how);
}

// Writes theta of a weight, or its neighbours along a direction; `base` and what is made are on the
// device of `compute`, and stay until it is through.
void make_low_rank(ZoEngine& engine, const std::string& weight, const Tensor& base,
                   const Tensor& plus, const Tensor* minus, const StepNoise* noise,
                   const StreamRef& compute) {
  const auto bytes_of = [&](const Tensor& tensor) {
    check_on(compute, tensor, weight.c_str());
    SLUICEWAY_CHECK(
        tensor.is_contiguous() && tensor.type() == base.type() && tensor.nbytes() == base.nbytes(),
        weight, ": is ", tensor.type_name(), " of ", tensor.nbytes(),
        " bytes, expected contiguous ", base.type_name(), " of ", base.nbytes());
    return static_cast<std::byte*>(tensor.data());
  };
  const LowRankUpdates::Elements elements{{bytes_of(base), base.nbytes()},
                                          bytes_of(plus),
                                          minus == nullptr ? nullptr : bytes_of(*minus)};
  const GilReleased unlocked;
  engine.low_rank(compute).make_alone(stable_hash(weight), elements, engine.updates(), noise,
                                      compute);
}

// A method of the engine, called without the GIL.
template <typename Result, typename... Args>
auto method(Result (ZoEngine::*call)(Args...)) {
  return
      [call](StreamedEngine& held, Args... args) -> Result { return (held.engine.*call)(args...); };
}

void def_passes(Class& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine
      .def("stream", &stream_uses, py::arg("uses"),
           "Mode log. Each is name, host tensor, parameter group, number of the module, whether it "
           "stays on the device, number in the arena or -1; in the order of the forward. Names of "
           "one storage are one weight. Of a weight of the arena the tensor says shape and type.")
      .def(
          "stream", &stream_masters, py::arg("uses"),
          "Mode write_back. Each is the number of a weight that is held, number of the module, and "
          "whether it stays on the device; in the order of the forward.")
      .def_property_readonly("streams",
                             [](const StreamedEngine& held) { return held.engine.streams(); })
      .def("begin_step", method(&ZoEngine::begin_step),
           py::arg("directions") = std::vector<std::uint32_t>(), unlocked,
           "Round k of the pass measures directions[k]; without a list all of them.")
      .def("begin_evaluation", method(&ZoEngine::begin_evaluation), unlocked)
      .def("acquire", &acquire, py::arg("use"), py::arg("round"), py::arg("minus"),
           py::arg("compute"),
           "The slot itself, as a tensor: its elements last until release(). Of an evaluation both "
           "sides are theta.")
      .def("release", method(&ZoEngine::release), py::arg("use"), py::arg("round"),
           py::arg("compute"), unlocked)
      .def("commit", &commit, py::arg("g"), py::arg("rates"), py::arg("non_finite") = false,
           "Make the step, one (lr, weight_decay) a group, and end the pass.")
      .def(
          "finish", method(&ZoEngine::finish), unlocked,
          "End the pass, if there is one; a step that was not committed is as if it had not begun.")
      .def_property_readonly("is_passing",
                             [](const StreamedEngine& held) { return held.engine.is_passing(); })
      .def_property_readonly("next_step",
                             [](const StreamedEngine& held) { return held.engine.next_step(); })
      .def("take_stats", &take_stats)
      .def_property_readonly(
          "trace", [](const StreamedEngine& held) { return held.engine.trace(); },
          "The trace of all rings, also of those before a new base.");
}

void def_log(Class& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine.def("rollback", method(&ZoEngine::rollback), py::arg("step"), unlocked)
      .def("restore", method(&ZoEngine::restore), py::arg("entries"), unlocked,
           "Return to the line that the log had after a number of entries.")
      .def(
          "branch",
          [](const StreamedEngine& held, std::uint64_t step, const std::string& path) {
            held.engine.branch(step, path);
          },
          py::arg("step"), py::arg("path"), unlocked,
          "Write the line up to `step` to a log of its own.")
      .def("sync", method(&ZoEngine::sync), unlocked)
      .def("consolidate", &consolidate, py::arg("step"), py::arg("run_state"),
           py::arg("progress") = py::none(),
           "Make theta of a step the base, which carries the bytes of a run; between passes. "
           "progress: called with bytes done and in all.")
      .def_property_readonly(
          "entries",
          [](const StreamedEngine& held) { return held.engine.log().history().entries(); })
      .def_property_readonly(
          "log_id", [](const StreamedEngine& held) { return to_hex(held.engine.log().id()); })
      .def_property_readonly("gammas",
                             [](const StreamedEngine& held) { return held.engine.gammas(); })
      .def("pending", &pending, py::arg("group"),
           "Return (seed, step, purpose, scale) of each update of the base, and Gamma.");
}

void def_low_rank(Class& engine) {
  engine
      .def(
          "low_rank_theta",
          [](StreamedEngine& held, const std::string& weight, const Tensor& base, const Tensor& out,
             const StreamRef& compute) {
            make_low_rank(held.engine, weight, base, out, nullptr, nullptr, compute);
          },
          py::arg("weight"), py::arg("base"), py::arg("out"), py::arg("compute"),
          "Write theta of a weight with low-rank noise, by its name.")
      .def(
          "low_rank_neighbours",
          [](StreamedEngine& held, const std::string& weight, std::uint32_t direction,
             const Tensor& base, const Tensor& plus, const Tensor& minus,
             const StreamRef& compute) {
            const StepNoise noise = held.engine.noise(direction);
            make_low_rank(held.engine, weight, base, plus, &minus, &noise, compute);
          },
          py::arg("weight"), py::arg("direction"), py::arg("base"), py::arg("plus"),
          py::arg("minus"), py::arg("compute"),
          "Write theta + eps z and theta - eps z of the step that has begun.");
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

void def_write_back(Class& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine
      .def("hold", &hold, py::arg("weights"),
           "Take all trained weights, once: name, master in host memory, parameter group, and a "
           "tensor of the shape and type that a forward reads.")
      .def("flush", method(&ZoEngine::flush), unlocked,
           "Bring masters to next_step; nothing moves until the next pass begins.")
      .def("restart", method(&ZoEngine::restart), py::arg("step"), unlocked,
           "Declare that masters are of this step.")
      .def("begin_snapshot", method(&ZoEngine::begin_snapshot), unlocked,
           "Begin a snapshot of next_step, which the passes complete; one at a time.")
      .def(
          "drop_snapshot", [](StreamedEngine& held) { held.engine.drop_snapshot(); }, unlocked,
          "Drop the last snapshot, which nobody reads any more.")
      .def(
          "finish_snapshot",
          [](StreamedEngine& held, std::optional<double> seconds) {
            using Milliseconds = std::chrono::duration<double, std::milli>;
            if (!seconds) return held.engine.finish_snapshot();
            const Milliseconds most(std::max(0.0, *seconds) * 1e3);
            return held.engine.finish_snapshot(
                std::chrono::duration_cast<std::chrono::milliseconds>(most));
          },
          py::arg("seconds") = py::none(), unlocked,
          "Wait at most `seconds` until it was read; return True if it was. Needs no further "
          "pass.");
}

}  // namespace

void bind_zo_engine(py::module_& m) {
  const auto unlocked = py::call_guard<GilReleased>();
  m.def("page_locked_copy", &page_locked_copy, py::arg("tensor"), py::arg("compute"),
        "Copy a tensor to host memory of exactly its size, page-locked for the stream's device.");
  m.def("zo_log_directions", &log_directions, py::arg("path"), unlocked,
        "Number of directions of each step of an existing log.");
  bind_snapshot(m);
  const std::string doc =
      "Mode log, which logs what moves the weights: " + keywords(ZoMode::kLog).listed() +
      ". Mode write_back, which writes each step into them: " +
      keywords(ZoMode::kWriteBack).listed() + ". " + kLanesDoc +
      " resident_room: bytes of weights that may stay on the device. depth: modules on their way. "
      "log: a file, made if it is not there. rank: of noise, 0 for elementwise. period: steps for "
      "which V is kept. trained: name, tensor and parameter group of each weight, if the noise has "
      "a rank. base_hash: 16 bytes, of a base in host memory. arena: the base. threads: how many "
      "write steps in host memory. wire: type in which float32 masters cross the link, or fp8, for "
      "images of them; empty: as they are.";
  Class engine(m, "ZoEngine", "Streams perturbed weights from host memory or an arena.");
  engine.def(py::init(&make_engine), py::kw_only(), py::arg("compute"), py::arg("mode"),
             py::arg("trained") = std::vector<Trained>(), py::arg("base_hash") = py::bytes(),
             py::arg("arena") = py::none(), doc.c_str());
  def_passes(engine);
  def_log(engine);
  def_low_rank(engine);
  def_write_back(engine);
}

}  // namespace sluiceway
