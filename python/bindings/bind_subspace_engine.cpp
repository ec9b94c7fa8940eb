#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "compress/learner.h"
#include "python/bindings/bind_weight_state.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/weight_options.h"

namespace sluiceway {
namespace {

void bind_weight_spec(py::module_& m) {
  py::class_<WeightSpec>(m, "WeightSpec", "A weight to train, and the options of its compression.")
      .def(py::init([](std::string name, const Tensor& weight, const py::kwargs& options) {
             const AnyMatrix view = matrix_view(weight, name.c_str());
             WeightSpec spec;
             spec.name = std::move(name);
             spec.rows = view.rows;
             spec.cols = view.cols;
             spec.dtype = view.dtype;
             weight_keywords().set(spec, options);
             return spec;
           }),
           py::arg("name"), py::arg("weight"), weight_keywords_doc().c_str());
}

const Keywords<SubspaceOptions>& engine_keywords() {
  using O = SubspaceOptions;
  using std::string;
  static const Keywords<O> keywords(
      "EngineOptions", gate_keywords<O>(),
      {
          {"seed", &O::seed},
          {"codec",
           [](O& o, const string& name) {
             o.refresh = RefreshPolicy::default_config(resolve_codec(name));
           }},
          {"refresh_every",
           [](O& o, const std::optional<std::int64_t>& every) {
             if (every) o.refresh.every = *every;
           }},
          {"refresh_source",
           [](O& o, const string& name) { o.refresh.source = parse_calibration_source(name); }},
          {"refresh_threshold",
           [](O& o, const std::optional<double>& threshold) {
             o.learn.threshold = threshold.value_or(0.0);
           }},
          {"refresh_learn_steps", [](O& o, int steps) { o.learn.learn_steps = steps; }},
          {"refresh_transport",
           [](O& o, const string& name) { o.learn.transport = parse_transport(name); }},
          {"refresh_learn_rate", [](O& o, double rate) { o.learn.learn_rate = rate; }},
          {"refresh_beta", [](O& o, double beta) { o.learn.beta = beta; }},
          {"refresh_init",
           [](O& o, const string& name) { o.learn.init = parse_sparse_init(name); }},
          {"residual_at_once", &O::residual_at_once},
          {"shared", &O::shared},
          {"residual_every", &O::residual_every},
          {"residual_max_rms", &O::residual_max_rms},
          {"tokens_per_step", [](O& o, std::int64_t tokens) { o.run.tokens_per_step = tokens; }},
          {"total_steps", [](O& o, std::int64_t steps) { o.run.steps = steps; }},
      });
  return keywords;
}

void bind_engine_options(py::module_& m) {
  const std::string doc = "compute: a stream of the device that the weights are on; " +
                          engine_keywords().listed() + ". " + kLanesDoc +
                          " refresh_every: None for the codec's own.";
  py::class_<SubspaceOptions>(m, "EngineOptions",
                              "Options of an engine: schedule, clipping, throttle.")
      .def(py::init([](const StreamRef& compute, const py::kwargs& given) {
             SubspaceOptions options = options_on(compute, engine_keywords(), given);
             options.lanes.check_interrupt = signal_check();
             return options;
           }),
           py::kw_only(), py::arg("compute"), doc.c_str());
}

AnyMatrix gradient_view(const Tensor& gradient) { return matrix_view(gradient, "gradient"); }

void add_gradient(SubspaceEngine& engine, int weight, const Tensor& gradient, const Tensor& total,
                  const StreamRef& compute) {
  const AnyMatrix g = gradient_view(gradient), sum = gradient_view(total);
  check_on(compute, gradient, "gradient");
  const GilReleased unlocked;
  engine.add_gradient(weight, g, sum, compute);
}

void add_core(SubspaceEngine& engine, int weight, const Tensor& core, bool whole,
              const StreamRef& compute) {
  const AnyMatrix s = matrix_view(core, "core");
  check_on(compute, core, "core");
  const GilReleased unlocked;
  engine.add_core(weight, s, whole, compute);
}

// Learns in Python, with torch's linear algebra.
class PythonLearner final : public ProjectorLearner {
 public:
  explicit PythonLearner(const py::object& learner) : learner_(kept(learner)) {}

  void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t seed, StreamRef stream) override {
    const GilHeld locked;
    const DeviceId device = stream.device();
    const auto side = [&](MatrixView<float> x) {
      if (x.cols == 0) return py::object(py::none());
      return py::cast(tensor_over({x.data, x.rows, x.cols, x.stride, DType::kF32}, device));
    };
    method("leading_directions")(tensor_over(g, device), side(p), side(q), seed);
  }

  LearnOutcome learn(const AnyMatrix& g, const LearnableRows& p, const LearnableRows& q,
                     const LearnOptions& options, StreamRef stream) override {
    const GilHeld locked;
    const DeviceId device = stream.device();
    const auto rows = [&](const LearnableRows& x) {
      const std::array shape{x.rows, x.nnz};
      auto* const index = const_cast<std::int32_t*>(x.index);  // It is only read.
      return py::make_tuple(tensor_over(index, shape, ElementType::kInt32, device),
                            tensor_over(x.value.data(), shape, ElementType::kFloat32, device),
                            x.cols);
    };
    using py::literals::operator""_a;
    const py::dict given("threshold"_a = options.threshold, "max_steps"_a = options.max_steps,
                         "beta"_a = options.beta, "learning_rate"_a = options.learning_rate,
                         "beta1"_a = options.beta1, "beta2"_a = options.beta2,
                         "eps"_a = options.eps);
    const py::object done = method("learn")(tensor_over(g, device), rows(p), rows(q), given);
    const auto [before, after, steps] = done.cast<std::tuple<double, double, int>>();
    return {before, after, steps};
  }

 private:
  py::object method(const char* name) const { return py::handle(learner_.get()).attr(name); }

  Kept learner_;
};

EngineHolder<SubspaceEngine> make_engine(SubspaceOptions options, std::vector<WeightSpec> weights,
                                         const py::object& learner) {
  auto in_python = std::make_unique<PythonLearner>(learner);
  const GilReleased unlocked;
  return EngineHolder<SubspaceEngine>(
      new SubspaceEngine(std::move(options), std::move(weights), std::move(in_python)));
}

Side parse_side(const std::string& name) {
  SLUICEWAY_CHECK(name == "p" || name == "q", "side: is \"", name, "\", expected p or q");
  return name == "p" ? Side::kRows : Side::kColumns;
}

void project(const SubspaceEngine& engine, int weight, const std::string& side, const Tensor& rows,
             const Tensor& out, const Tensor& scratch, const StreamRef& compute) {
  const AnyMatrix g = matrix_view(rows, "rows"), w = matrix_view(out, "out");
  const std::span<float> room = f32_span(scratch, "scratch");
  const Side of = parse_side(side);
  check_on(compute, rows, "rows");
  const GilReleased unlocked;
  engine.weight(weight).codec->project(of, w, g, room, compute);
}

// Each is (lr, beta1, beta2, eps, weight_decay, scale).
using Hypers = std::vector<std::array<double, 6>>;

std::vector<WeightHyper> hypers_of(const Hypers& hyper) {
  std::vector<WeightHyper> out;
  out.reserve(hyper.size());
  for (const auto& h : hyper) out.push_back({h[0], h[1], h[2], h[3], h[4], h[5]});
  return out;
}

void prepare(SubspaceEngine& engine, const Hypers& hyper, const std::vector<Tensor>& weights) {
  engine.prepare(hypers_of(hyper), views_of(weights));
}

std::tuple<bool, double, float, int> step(SubspaceEngine& engine, const Hypers& hyper,
                                          const std::vector<Tensor>& weights, float factor,
                                          double other_sum_squares, float unscale,
                                          const std::vector<float>& own_factors,
                                          const StreamRef& compute) {
  const std::vector<WeightHyper> hypers = hypers_of(hyper);
  const std::vector<AnyMatrix> views = views_of(weights);
  StepOutcome outcome;
  {
    const GilReleased unlocked;
    outcome =
        engine.step({hypers, views, factor, other_sum_squares, unscale, own_factors, compute});
  }
  return {outcome.skipped, outcome.grad_norm, outcome.clip_factor, outcome.residuals_kept};
}

Stats take_stats(SubspaceEngine& engine) {
  const SubspaceStats stats = engine.take_stats();
  Stats result = stats_of(stats.use, stats.host_seconds);
  result["learn_seconds"] = stats.calibration.seconds;
  result["recalled"] = stats.recalled;
  result["refreshed"] = stats.calibration.refreshed;
  result["bias_mean"] = stats.calibration.bias_mean;
  result["held_bytes"] = stats.held_bytes;
  result["speculative"] = stats.speculative;
  return result;
}

py::typing::Dict<py::str, py::object> describe(const SubspaceEngine& engine, int weight) {
  const SubspaceWeight& held = engine.weight(weight);
  py::typing::Dict<py::str, py::object> result;
  result["name"] = held.spec.name;
  result["codec"] = std::string(held.codec->name());
  result["core_rows"] = held.plan.core.rows;
  result["core_cols"] = held.plan.core.cols;
  result["projects"] = held.codec->projects();
  result["learns"] = held.codec->learns();
  result["project_scratch_elems"] = held.codec->project_scratch_elems();
  result["scale"] = held.codec->default_scale();
  result["residual"] = std::string(to_string(held.spec.residual));
  result["second_moment"] = std::string(to_string(held.spec.second_moment));
  result["d2h_bytes"] = held.plan.d2h_bytes;
  result["h2d_bytes"] = held.plan.h2d_bytes;
  result["device_bytes"] = held.plan.device_bytes + held.plan.projector_bytes;
  result["host_bytes"] = held.plan.host_bytes;
  result["pinned_bytes"] = held.plan.pinned_bytes;
  return result;
}

// Of an engine whose gradients several processes share.
void bind_shared_gradients(EngineClass<SubspaceEngine>& engine) {
  const auto unlocked = py::call_guard<GilReleased>();
  engine
      .def(
          "core",
          [](const SubspaceEngine& e, int weight, const StreamRef& compute) {
            const MatrixView<float> s = e.core(weight);
            return tensor_over({s.data, s.rows, s.cols, s.stride, DType::kF32}, compute.device());
          },
          py::arg("weight"), py::arg("compute"),
          "The core of a step's gradients so far, as a tensor over the engine's memory.")
      .def("averaged", &SubspaceEngine::averaged, py::arg("weight"), unlocked,
           "Call after the core or the sum of a weight's gradients was averaged; see the header.")
      .def("calibrates", &SubspaceEngine::calibrates, py::arg("weight"))
      .def(
          "calibrate_on",
          [](SubspaceEngine& e, int weight, const Tensor& gradient, const StreamRef& compute) {
            const AnyMatrix g = gradient_view(gradient);
            check_on(compute, gradient, "gradient");
            const GilReleased released;
            e.calibrate_on(weight, g, compute);
          },
          py::arg("weight"), py::arg("gradient"), py::arg("compute"),
          "Fit or measure projectors on the average of a gradient over processes.");
}

}  // namespace

void bind_subspace_engine(py::module_& m) {
  bind_weight_spec(m);
  bind_engine_options(m);
  const auto unlocked = py::call_guard<GilReleased>();
  EngineClass<SubspaceEngine> engine(m, "SubspaceEngine",
                                     "Trains weights through compressed gradients.");
  engine
      .def(py::init(&make_engine), py::arg("options"), py::arg("weights"), py::arg("learner"),
           "learner: fits projectors, as optim/subspace/learner.py does.")
      .def_property_readonly("automatic", &SubspaceEngine::automatic,
                             "The choice for codec=\"auto\", whether or not a weight has it.")
      .def("prepare", &prepare, py::arg("hyper"), py::arg("weights"))
      .def("add_gradient", &add_gradient, py::arg("weight"), py::arg("gradient"), py::arg("total"),
           py::arg("compute"),
           "Add the gradient of a backward, with contiguous rows, to the sum of a step; see the "
           "header.")
      .def("add_core", &add_core, py::arg("weight"), py::arg("core"), py::arg("whole"),
           py::arg("compute"), "Add P^T G Q, computed without forming G; see the header.")
      .def("keeps_total", &SubspaceEngine::keeps_total, py::arg("weight"),
           "True if the sum of a step's gradients is read after add_gradient(); see the header.")
      .def("wants_gradient", &SubspaceEngine::wants_gradient, py::arg("weight"))
      .def("project", &project, py::arg("weight"), py::arg("side"), py::arg("rows"), py::arg("out"),
           py::arg("scratch"), py::arg("compute"),
           "out = rows P, or rows Q with side \"q\"; scratch has project_scratch_elems of "
           "describe().")
      .def(
          "generation",
          [](const SubspaceEngine& e, int weight) { return e.weight(weight).codec->generation(); },
          py::arg("weight"), "Number of times that the projectors of a weight were replaced.")
      .def("hold_residual", &SubspaceEngine::hold_residual, py::arg("weight"))
      .def("residual_done", &SubspaceEngine::residual_done, py::arg("weight"))
      .def("residual_trained", &SubspaceEngine::residual_trained, py::arg("weight"), unlocked,
           "Return whether a residual has changed the weight before step(); may wait for the "
           "device.")
      .def("end_backward", &SubspaceEngine::end_backward, unlocked)
      .def(
          "gathered_norm", [](SubspaceEngine& e) { return norm_tuple(e.gathered_norm()); },
          unlocked,
          "Norm of all gradients so far, and True if they are finite; waits for a device.")
      .def("step", &step, py::arg("hyper"), py::arg("weights"), py::arg("factor"),
           py::arg("other_sum_squares"), py::arg("unscale"), py::arg("own_factors"),
           py::arg("compute"),
           "Make the step; updates come after everything that `compute` has by now.")
      .def("uncalibrated", &SubspaceEngine::uncalibrated,
           "Number of weights whose projectors wait for their first gradient.")
      .def("calibration_due", &SubspaceEngine::calibration_due)
      .def("begin_calibration", &SubspaceEngine::begin_calibration, unlocked)
      .def("end_calibration", &SubspaceEngine::end_calibration)
      .def("take_stats", &take_stats)
      .def("describe", &describe, py::arg("weight"));
  bind_weight_state(engine);
  bind_shared_gradients(engine);
}

}  // namespace sluiceway
