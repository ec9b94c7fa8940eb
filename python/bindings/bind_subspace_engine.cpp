#include "python/bindings/bind_weight_state.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/gil.h"
#include "python/bindings/weight_options.h"

namespace sluiceway {
namespace {

void bind_weight_spec(py::module_& m) {
  py::class_<WeightSpec>(m, "WeightSpec", "What to train, and how it is compressed.")
      .def(py::init([](std::string name, const at::Tensor& weight, const py::kwargs& options) {
             const AnyMatrix view = matrix_view(weight, name.c_str());
             WeightSpec spec;
             spec.name = std::move(name);
             spec.rows = view.rows;
             spec.cols = view.cols;
             spec.dtype = view.dtype;
             set_weight_options(spec, options);
             return spec;
           }),
           py::arg("name"), py::arg("weight"), kWeightOptionsDoc);
}

RefreshPolicy::Config refresh_config(const std::string& codec, std::optional<std::int64_t> every,
                                     const std::string& source) {
  RefreshPolicy::Config config = RefreshPolicy::default_config(resolve_codec(codec));
  if (every) config.every = *every;
  config.source = parse_calibration_source(source);
  return config;
}

void bind_engine_options(py::module_& m) {
  py::class_<SubspaceOptions>(m, "EngineOptions", "How an engine schedules, clips and throttles.")
      .def(py::init([](const StreamRef& compute, std::array<double, 3> link,
                       const LimitOfTier& limits, std::uint64_t resident_bytes,
                       const std::string& schedule, const std::string& norm_mode, double max_norm,
                       int promised_backwards, std::uint64_t seed, const std::string& codec,
                       std::optional<std::int64_t> refresh_every, const std::string& refresh_source,
                       std::optional<double> refresh_threshold, int refresh_learn_steps,
                       const std::string& refresh_transport, double refresh_learn_rate,
                       double refresh_beta, const std::string& refresh_init, bool residual_at_once,
                       int residual_every, double residual_max_rms, std::int64_t tokens_per_step,
                       std::int64_t total_steps, int device_cpu, int lane_cpu, int lane_threads) {
             SubspaceOptions options(compute.device());
             set_lanes(options.lanes, link, limits, resident_bytes, schedule);
             options.host_threads = lane_threads;
             options.gate.norm = parse_norm_choice(norm_mode);
             options.gate.max_norm = max_norm;
             options.gate.promised_backwards = promised_backwards;
             options.seed = seed;
             options.refresh = refresh_config(codec, refresh_every, refresh_source);
             options.learn.threshold = refresh_threshold.value_or(0.0);
             options.learn.learn_steps = refresh_learn_steps;
             options.learn.transport = parse_transport(refresh_transport);
             options.learn.learn_rate = refresh_learn_rate;
             options.learn.beta = refresh_beta;
             options.learn.init = parse_sparse_init(refresh_init);
             options.residual_at_once = residual_at_once;
             options.residual_every = residual_every;
             options.residual_max_rms = residual_max_rms;
             options.run.tokens_per_step = tokens_per_step;
             options.run.steps = total_steps;
             options.device_cpu = device_cpu;
             options.lane_cpu = lane_cpu;
             return options;
           }),
           py::kw_only(), py::arg("compute"), py::arg("link"), py::arg("limits"),
           py::arg("resident_bytes"), py::arg("schedule"), py::arg("norm_mode"),
           py::arg("max_norm"), py::arg("promised_backwards"), py::arg("seed"), py::arg("codec"),
           py::arg("refresh_every"), py::arg("refresh_source"), py::arg("refresh_threshold"),
           py::arg("refresh_learn_steps"), py::arg("refresh_transport"),
           py::arg("refresh_learn_rate"), py::arg("refresh_beta"), py::arg("refresh_init"),
           py::arg("residual_at_once"), py::arg("residual_every"), py::arg("residual_max_rms"),
           py::arg("tokens_per_step"), py::arg("total_steps"), py::arg("device_cpu"),
           py::arg("lane_cpu"), py::arg("lane_threads"),
           ("compute: a stream of the device that the weights are on. " + std::string(kLanesDoc) +
            " refresh_every: None for the codec's own.")
               .c_str());
}

AnyMatrix gradient_view(const at::Tensor& gradient) { return matrix_view(gradient, "gradient"); }

void add_gradient(SubspaceEngine& engine, int weight, const at::Tensor& gradient,
                  const at::Tensor& total, const StreamRef& compute) {
  const AnyMatrix g = gradient_view(gradient), sum = gradient_view(total);
  check_on(compute, gradient, "gradient");
  const GilReleased unlocked;
  engine.add_gradient(weight, g, sum, compute);
}

void add_core(SubspaceEngine& engine, int weight, const at::Tensor& core, bool whole,
              const StreamRef& compute) {
  const AnyMatrix s = matrix_view(core, "core");
  check_on(compute, core, "core");
  const GilReleased unlocked;
  engine.add_core(weight, s, whole, compute);
}

Side parse_side(const std::string& name) {
  SLUICEWAY_CHECK(name == "p" || name == "q", "side: is \"", name, "\", expected p or q");
  return name == "p" ? Side::kRows : Side::kColumns;
}

void project(const SubspaceEngine& engine, int weight, const std::string& side,
             const at::Tensor& rows, const at::Tensor& out, const at::Tensor& scratch,
             const StreamRef& compute) {
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

void prepare(SubspaceEngine& engine, const Hypers& hyper, const std::vector<at::Tensor>& weights) {
  engine.prepare(hypers_of(hyper), views_of(weights));
}

std::tuple<bool, double, float, int> step(SubspaceEngine& engine, const Hypers& hyper,
                                          const std::vector<at::Tensor>& weights, float factor,
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

}  // namespace

void bind_subspace_engine(py::module_& m) {
  bind_weight_spec(m);
  bind_engine_options(m);
  const auto unlocked = py::call_guard<GilReleased>();
  EngineClass<SubspaceEngine> engine(m, "SubspaceEngine",
                                     "Trains weights through compressed gradients.");
  engine
      .def(py::init([](SubspaceOptions options, std::vector<WeightSpec> weights) {
             return EngineHolder<SubspaceEngine>(
                 new SubspaceEngine(std::move(options), std::move(weights), make_torch_learner()));
           }),
           py::arg("options"), py::arg("weights"), unlocked)
      .def_property_readonly("automatic", &SubspaceEngine::automatic,
                             "What codec=\"auto\" came to, whether or not a weight has it.")
      .def("prepare", &prepare, py::arg("hyper"), py::arg("weights"))
      .def("add_gradient", &add_gradient, py::arg("weight"), py::arg("gradient"), py::arg("total"),
           py::arg("compute"),
           "`gradient` of a backward, rows contiguous, and the sum of a step's; see the header.")
      .def("add_core", &add_core, py::arg("weight"), py::arg("core"), py::arg("whole"),
           py::arg("compute"), "P^T G Q that was computed without forming G; see the header.")
      .def("keeps_total", &SubspaceEngine::keeps_total, py::arg("weight"),
           "Whether the sum of a step's gradients is read after add_gradient(); see the header.")
      .def("wants_gradient", &SubspaceEngine::wants_gradient, py::arg("weight"))
      .def("project", &project, py::arg("weight"), py::arg("side"), py::arg("rows"), py::arg("out"),
           py::arg("scratch"), py::arg("compute"),
           "out = rows P, or rows Q with side \"q\"; scratch has project_scratch_elems of "
           "describe().")
      .def(
          "generation",
          [](const SubspaceEngine& e, int weight) { return e.weight(weight).codec->generation(); },
          py::arg("weight"), "How often the projectors of a weight were replaced.")
      .def("hold_residual", &SubspaceEngine::hold_residual, py::arg("weight"))
      .def("residual_done", &SubspaceEngine::residual_done, py::arg("weight"))
      .def("residual_trained", &SubspaceEngine::residual_trained, py::arg("weight"), unlocked,
           "Return whether a residual has changed the weight before step(); may wait for the "
           "device.")
      .def("end_backward", &SubspaceEngine::end_backward, unlocked)
      .def(
          "gathered_norm", [](SubspaceEngine& e) { return norm_tuple(e.gathered_norm()); },
          unlocked,
          "Norm of all gradients so far, and whether they are finite; on a device it waits.")
      .def("step", &step, py::arg("hyper"), py::arg("weights"), py::arg("factor"),
           py::arg("other_sum_squares"), py::arg("unscale"), py::arg("own_factors"),
           py::arg("compute"), "Updates come after all that `compute` was given by now.")
      .def("close", &close_engine<SubspaceEngine>, py::arg("lent"),
           "drop() and synchronize(). Timeout: a lane is stuck; what was `lent` to it is kept.")
      .def("uncalibrated", &SubspaceEngine::uncalibrated,
           "Number of weights whose projectors wait for their first gradient.")
      .def("calibration_due", &SubspaceEngine::calibration_due)
      .def("begin_calibration", &SubspaceEngine::begin_calibration, unlocked)
      .def("end_calibration", &SubspaceEngine::end_calibration)
      .def("take_stats", &take_stats)
      .def("describe", &describe, py::arg("weight"));
  bind_common(engine);
  bind_weight_state(engine);
}

}  // namespace sluiceway
