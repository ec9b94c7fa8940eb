#include <pybind11/stl.h>

#include "python/bindings/bindings.h"
#include "python/bindings/engine_class.h"
#include "python/bindings/signal_check.h"
#include "python/bindings/tensor_view.h"
#include "python/bindings/weight_options.h"
#include "runtime/engine/subspace/subspace_engine.h"

namespace sluiceway {
namespace {

using Limits = std::array<std::optional<std::uint64_t>, kTierCount>;

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
      .def(py::init([](std::array<double, 3> link, const Limits& limits,
                       std::uint64_t resident_bytes, const std::string& schedule,
                       const std::string& norm_mode, double max_norm, int promised_backwards,
                       std::uint64_t seed, const std::string& codec,
                       std::optional<std::int64_t> refresh_every, const std::string& refresh_source,
                       std::optional<double> refresh_threshold, int refresh_learn_steps,
                       const std::string& refresh_transport, double refresh_learn_rate,
                       double refresh_beta, const std::string& refresh_init, bool residual_at_once,
                       int residual_every, double residual_max_rms, std::int64_t tokens_per_step,
                       std::int64_t total_steps, int device_cpu, int lane_cpu) {
             SubspaceOptions options(DeviceId::host());
             options.lanes.d2h = {link[0], link[2]};
             options.lanes.h2d = {link[1], link[2]};
             for (std::size_t tier = 0; tier < kTierCount; ++tier) {
               options.lanes.limits[tier] = limits[tier].value_or(Budget::kUnlimited);
             }
             options.lanes.resident_bytes = resident_bytes;
             options.lanes.order = parse_order(schedule);
             options.lanes.check_interrupt = signal_check();
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
           py::kw_only(), py::arg("link"), py::arg("limits"), py::arg("resident_bytes"),
           py::arg("schedule"), py::arg("norm_mode"), py::arg("max_norm"),
           py::arg("promised_backwards"), py::arg("seed"), py::arg("codec"),
           py::arg("refresh_every"), py::arg("refresh_source"), py::arg("refresh_threshold"),
           py::arg("refresh_learn_steps"), py::arg("refresh_transport"),
           py::arg("refresh_learn_rate"), py::arg("refresh_beta"), py::arg("refresh_init"),
           py::arg("residual_at_once"), py::arg("residual_every"), py::arg("residual_max_rms"),
           py::arg("tokens_per_step"), py::arg("total_steps"), py::arg("device_cpu"),
           py::arg("lane_cpu"),
           "link: d2h GB/s, h2d GB/s, latency in us, 0 for unthrottled. limits: bytes for device, "
           "host, pinned, disk, None for no limit. refresh_every: None for the codec's own.");
}

AnyMatrix gradient_view(const at::Tensor& gradient) { return matrix_view(gradient, "gradient"); }

void add_gradient(SubspaceEngine& engine, int weight, const at::Tensor& gradient,
                  const at::Tensor& total) {
  const AnyMatrix g = gradient_view(gradient), sum = gradient_view(total);
  const StreamRef compute = stream_of(gradient, "gradient");
  const py::gil_scoped_release unlocked;
  engine.add_gradient(weight, g, sum, compute);
}

// Each is (lr, beta1, beta2, eps, weight_decay, scale).
using Hypers = std::vector<std::array<double, 6>>;

std::vector<WeightHyper> hypers_of(const Hypers& hyper) {
  std::vector<WeightHyper> out;
  out.reserve(hyper.size());
  for (const auto& h : hyper) out.push_back({h[0], h[1], h[2], h[3], h[4], h[5]});
  return out;
}

std::vector<AnyMatrix> views_of(const std::vector<at::Tensor>& weights) {
  std::vector<AnyMatrix> out;
  out.reserve(weights.size());
  for (const at::Tensor& weight : weights) out.push_back(matrix_view(weight, "weight"));
  return out;
}

void prepare(SubspaceEngine& engine, const Hypers& hyper, const std::vector<at::Tensor>& weights) {
  engine.prepare(hypers_of(hyper), views_of(weights));
}

std::tuple<bool, double, float, int> step(SubspaceEngine& engine, const Hypers& hyper,
                                          const std::vector<at::Tensor>& weights, float factor,
                                          double other_sum_squares, float unscale,
                                          const std::vector<float>& own_factors) {
  const std::vector<WeightHyper> hypers = hypers_of(hyper);
  const std::vector<AnyMatrix> views = views_of(weights);
  StepOutcome outcome;
  {
    const py::gil_scoped_release unlocked;
    outcome = engine.step({hypers, views, factor, other_sum_squares, unscale, own_factors});
  }
  return {outcome.skipped, outcome.grad_norm, outcome.clip_factor, outcome.residuals_kept};
}

// Storage that a lane may still write to when nobody waits for it any more is never freed. Not by
// the tensors of Python: torch aborts where those outlive the interpreter.
void keep_for_good(const std::vector<at::Tensor>& lent) {
  auto* const kept = new std::vector<at::Tensor>;
  for (const at::Tensor& tensor : lent) kept->push_back(tensor.detach());
}

void close(SubspaceEngine& engine, const std::vector<at::Tensor>& lent) {
  try {
    const py::gil_scoped_release unlocked;
    engine.close();
  } catch (const Timeout&) {
    if (!engine.idle()) keep_for_good(lent);
    throw;
  }
}

void finish(SubspaceEngine& engine, const std::vector<at::Tensor>& lent) {
  try {
    const py::gil_scoped_release unlocked;
    engine.finish();
  } catch (...) {
    keep_for_good(lent);
    throw;
  }
}

std::vector<std::pair<double, float>> gradient_sizes(const SubspaceEngine& engine) {
  std::vector<std::pair<double, float>> sizes;
  for (std::size_t i = 0; i < engine.size(); ++i) {
    const ScanResult scan = engine.gradient_scan(static_cast<int>(i));
    sizes.emplace_back(scan.sum_squares, scan.abs_max);
  }
  return sizes;
}

py::dict by_tier(const Budget::Limits& bytes) {
  py::dict result;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    result[py::str(std::string(to_string(static_cast<Tier>(tier))))] = bytes[tier];
  }
  return result;
}

py::typing::Dict<py::str, py::object> take_stats(SubspaceEngine& engine) {
  const SubspaceStats stats = engine.take_stats();
  py::typing::Dict<py::str, py::object> result;
  result["d2h_bytes"] = stats.use.d2h_bytes;
  result["h2d_bytes"] = stats.use.h2d_bytes;
  result["stall_seconds"] = stats.use.stall_seconds;
  result["host_seconds"] = stats.host_seconds;
  result["learn_seconds"] = stats.calibration.seconds;
  result["recalled"] = stats.recalled;
  result["refreshed"] = stats.calibration.refreshed;
  result["bias_mean"] = stats.calibration.bias_mean;
  result["used_bytes"] = by_tier(stats.use.used);
  result["peak_bytes"] = by_tier(stats.use.peak);
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

void bind_trace(EngineClass& engine) {
  engine
      .def(
          "enable_trace", [](SubspaceEngine& e, bool on) { e.trace().enable(on); }, py::arg("on"))
      .def(
          "add_trace_range",
          [](SubspaceEngine& e, const std::string& row, const std::string& name, double begin_us,
             double end_us) {
            e.trace().add_range(e.trace().add_row(row), name, begin_us, end_us);
          },
          py::arg("row"), py::arg("name"), py::arg("begin_us"), py::arg("end_us"))
      .def(
          "write_trace",
          [](SubspaceEngine& e, const std::string& path) { e.trace().write_json(path); },
          py::arg("path"));
}

}  // namespace

void bind_subspace_engine(py::module_& m) {
  bind_weight_spec(m);
  bind_engine_options(m);
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  EngineClass engine(m, "SubspaceEngine", "Trains weights through compressed gradients.");
  engine
      .def(py::init([](SubspaceOptions options, std::vector<WeightSpec> weights) {
             return std::unique_ptr<SubspaceEngine, EngineDeleter>(
                 new SubspaceEngine(std::move(options), std::move(weights), make_torch_learner()));
           }),
           py::arg("options"), py::arg("weights"), unlocked)
      .def("__len__", &SubspaceEngine::size)
      .def_property_readonly("automatic", &SubspaceEngine::automatic,
                             "What codec=\"auto\" came to, whether or not a weight has it.")
      .def("prepare", &prepare, py::arg("hyper"), py::arg("weights"))
      .def("add_gradient", &add_gradient, py::arg("weight"), py::arg("gradient"), py::arg("total"),
           "`gradient` of a backward, rows contiguous, and the sum of a step's; see the header.")
      .def("hold_residual", &SubspaceEngine::hold_residual, py::arg("weight"))
      .def("residual_done", &SubspaceEngine::residual_done, py::arg("weight"))
      .def(
          "end_backward",
          [](SubspaceEngine& e) {
            const GradientNorm norm = e.end_backward();
            return std::tuple<double, bool>(norm.norm, norm.finite);
          },
          unlocked)
      .def("step", &step, py::arg("hyper"), py::arg("weights"), py::arg("factor"),
           py::arg("other_sum_squares"), py::arg("unscale"), py::arg("own_factors"))
      .def("gradient_sizes", &gradient_sizes,
           "Sum of squares and largest absolute element of each weight's gradient so far; after "
           "end_backward(). Neither is finite where the gradient is not.")
      .def("has_gradient", &SubspaceEngine::has_gradient)
      .def("drop", &SubspaceEngine::drop, unlocked)
      .def(
          "wait",
          [](SubspaceEngine& e, int weight) { return e.acquire(weight, StreamRef::host()); },
          py::arg("weight"), unlocked)
      .def("synchronize", &SubspaceEngine::synchronize, unlocked)
      .def("close", &close, py::arg("lent"),
           "drop() and synchronize(). Timeout: a lane is stuck; what was `lent` to it is kept.")
      .def("finish", &finish, py::arg("lent"),
           "As close(), whatever failed before; raises only where a lane still runs.")
      .def("uncalibrated", &SubspaceEngine::uncalibrated,
           "Number of weights whose projectors wait for their first gradient.")
      .def("calibration_due", &SubspaceEngine::calibration_due)
      .def("begin_calibration", &SubspaceEngine::begin_calibration, unlocked)
      .def("end_calibration", &SubspaceEngine::end_calibration)
      .def_property("committed_steps", &SubspaceEngine::committed_steps,
                    &SubspaceEngine::set_committed_steps)
      .def("note_device_times", &SubspaceEngine::note_device_times, py::arg("forward_s"),
           py::arg("backward_s"))
      .def("take_stats", &take_stats)
      .def("describe", &describe, py::arg("weight"));
  bind_trace(engine);
  bind_weight_state(engine);
}

}  // namespace sluiceway
