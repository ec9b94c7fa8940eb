#include <ATen/ops/from_blob.h>

#include <chrono>
#include <cstring>
#include <tuple>

#include "python/bindings/dtype_name.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/held_arena.h"
#include "python/bindings/low_rank_weights.h"
#include "python/bindings/noise_family.h"
#include "python/bindings/store_calls.h"
#include "python/bindings/streamed_passes.h"
#include "python/bindings/tensor_view.h"
#include "runtime/engine/zo/log_format.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/zo_engine.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {
namespace {

// The engine, and the storage of what it streams; nothing of Python.
struct StreamedEngine {
  StreamedEngine(const ZoEngineOptions& options, HeldArenaPtr base,
                 const std::vector<Trained>& trained)
      : device(options.ring.lanes.device),
        arena(std::move(base)),
        engine(with_trained(options, trained, vectors)) {}

  DeviceId device;
  HeldArenaPtr arena;  // Null: the base is in host memory.
  std::vector<at::Tensor> vectors;
  std::vector<at::Tensor> weights;  // By use.
  std::vector<at::Tensor> coming;   // The same of a ring that is being made.
  ZoEngine engine;
};

using Holder = PassHolder<StreamedEngine>;

// Page-locked for the device of `compute`, of exactly its size.
at::Tensor page_locked_copy(const at::Tensor& tensor, const StreamRef& compute) {
  static Budget& budget = *new Budget(Budget::unlimited());  // Tensors may outlive every static.
  const at::Tensor whole = tensor.detach().contiguous();
  const auto held = std::make_shared<Buffer>(budget, Tier::kPinned, compute.device(),
                                             whole.nbytes(), "a weight", Fill::kNone);
  at::Tensor copy = at::from_blob(
      held->data(), whole.sizes(), [held](void*) {}, at::TensorOptions().dtype(whole.dtype()));
  copy.copy_(whole);
  return copy;
}

// Name, weight, parameter group, number of the module, whether it stays on the device, and its
// number in the arena, or -1: the tensor is the base, and not only like it.
using Use = std::tuple<std::string, at::Tensor, int, int, bool, int>;

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

const Keywords<ZoEngineOptions>& keywords() {
  using O = ZoEngineOptions;
  using std::string;
  static const Keywords<O> keywords(
      "ZoEngine", ring_keywords<O>(),
      {
          {"depth", [](O& o, int depth) { o.ring.depth = ring_depth(depth, false); }},
          {"family",
           [](O& o, const string& name) {
             o.shape.noise.family = static_cast<std::uint32_t>(parse_family(name));
           }},
          {"rank", [](O& o, std::uint32_t rank) { o.shape.noise.rank = rank; }},
          {"period", [](O& o, std::uint32_t steps) { o.shape.noise.period_steps = steps; }},
          {"seed", [](O& o, std::uint64_t seed) { o.shape.run_seed = seed; }},
          {"groups", [](O& o, std::uint32_t groups) { o.shape.groups = groups; }},
          {"directions", [](O& o, std::uint32_t count) { o.shape.directions = count; }},
          {"log", &O::log_path},
      });
  return keywords;
}

void stream(StreamedEngine& held, const std::vector<Use>& uses) {
  std::vector<at::Tensor> weights;
  std::vector<ZoWeight> streamed;
  for (const auto& [name, weight, group, module, keep, source] : uses) {
    weights.push_back(weight.detach());
    const void* host = nullptr;
    if (source < 0) {
      check_host(weight, name.c_str());
      SLUICEWAY_CHECK(weight.is_contiguous(), name, ": is not contiguous; call .contiguous()");
      host = weights.back().const_data_ptr();
    }
    streamed.push_back({name, weight.numel(), dtype_of_tensor(weight, name.c_str()), group, module,
                        host, keep, source});
  }
  held.coming = std::move(weights);  // A ring of either may be there when this fails.
  {
    const GilReleased unlocked;
    held.engine.stream(std::move(streamed));
  }
  held.weights = std::move(held.coming);
}

// Each rate is (lr, weight_decay).
void commit(StreamedEngine& held, const std::vector<float>& g,
            const std::vector<std::pair<double, double>>& rates, bool non_finite) {
  const std::vector<StepRate> each = step_rates(rates);
  const GilReleased unlocked;
  held.engine.commit(g, each, non_finite);
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

using Class = py::class_<StreamedEngine, Holder>;

void def_log(Class& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine
      .def(
          "rollback", [](StreamedEngine& held, std::uint64_t step) { held.engine.rollback(step); },
          py::arg("step"), unlocked)
      .def(
          "restore",
          [](StreamedEngine& held, std::uint64_t entries) { held.engine.restore(entries); },
          py::arg("entries"), unlocked,
          "Return to the line that the log had after a number of entries.")
      .def(
          "branch",
          [](const StreamedEngine& held, std::uint64_t step, const std::string& path) {
            held.engine.branch(step, path);
          },
          py::arg("step"), py::arg("path"), unlocked,
          "Write the line up to `step` to a log of its own.")
      .def(
          "sync", [](StreamedEngine& held) { held.engine.sync(); }, unlocked)
      .def("consolidate", &consolidate, py::arg("step"), py::arg("run_state"),
           py::arg("progress") = py::none(),
           "Make theta of a step the base, which carries the bytes of a run; between passes. "
           "progress: called with bytes done and in all.")
      .def_property_readonly(
          "next_step", [](const StreamedEngine& held) { return held.engine.log().next_step(); })
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
          [](StreamedEngine& held, const std::string& weight, const at::Tensor& base,
             const at::Tensor& out, const StreamRef& compute) {
            make_low_rank(held.engine, weight, base, out, nullptr, nullptr, compute);
          },
          py::arg("weight"), py::arg("base"), py::arg("out"), py::arg("compute"),
          "Write theta of a weight with low-rank noise, by its name.")
      .def(
          "low_rank_neighbours",
          [](StreamedEngine& held, const std::string& weight, std::uint32_t direction,
             const at::Tensor& base, const at::Tensor& plus, const at::Tensor& minus,
             const StreamRef& compute) {
            const StepNoise noise = held.engine.noise(direction);
            make_low_rank(held.engine, weight, base, plus, &minus, &noise, compute);
          },
          py::arg("weight"), py::arg("direction"), py::arg("base"), py::arg("plus"),
          py::arg("minus"), py::arg("compute"),
          "Write theta + eps z and theta - eps z of the step that has begun.");
}

}  // namespace

void bind_zo_engine(py::module_& m) {
  const auto unlocked = py::call_guard<GilReleased>();
  m.def("page_locked_copy", &page_locked_copy, py::arg("tensor"), py::arg("compute"), unlocked,
        "Copy a tensor to host memory of exactly its size, page-locked for the stream's device.");
  m.def("zo_log_directions", &log_directions, py::arg("path"), unlocked,
        "Number of directions of each step of an existing log.");
  const std::string doc =
      keywords().listed() + ". " + kLanesDoc + " " + kRingDoc +
      " log: a file, made if it is not there. rank: of noise, 0 for elementwise. period: steps for "
      "which V is kept. trained: name, tensor and parameter group of each weight, if the noise has "
      "a rank. base_hash: 16 bytes, of a base in host memory. arena: the base.";
  Class engine(m, "ZoEngine",
               "Streams perturbed weights from host memory or an arena, and logs what moves them.");
  engine
      .def(py::init([](const StreamRef& compute, const std::vector<Trained>& trained,
                       const py::bytes& base_hash, const HeldArenaPtr& arena,
                       const py::kwargs& given) {
             ZoEngineOptions options = options_on(compute, keywords(), given);
             options.ring.lanes.check_interrupt = signal_check();
             if (arena != nullptr) {
               options.arena = arena->arena.get();
             } else {
               options.base = base_of(base_hash);
             }
             const GilReleased free;
             return Holder(new StreamedEngine(options, arena, trained));
           }),
           py::kw_only(), py::arg("compute"), py::arg("trained"),
           py::arg("base_hash") = py::bytes(), py::arg("arena") = py::none(), doc.c_str())
      .def("stream", &stream, py::arg("uses"),
           "Each is name, host tensor, parameter group, number of the module, whether it stays on "
           "the device, number in the arena or -1; in the order of the forward. Names of one "
           "storage are one weight. Of a weight of the arena the tensor says shape and type.");
  def_passes(engine);
  engine.def("commit", &commit, py::arg("g"), py::arg("rates"), py::arg("non_finite"),
             "Log the step, one (lr, weight_decay) a group, and end the pass.");
  def_log(engine);
  def_low_rank(engine);
}

}  // namespace sluiceway
