#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <map>
#include <string>

#include "python/bindings/bindings.h"
#include "python/bindings/dtype_name.h"
#include "python/bindings/weight_options.h"
#include "runtime/engine/subspace/auto_codec.h"
#include "runtime/engine/subspace/weight_plan.h"

namespace sluiceway {
namespace {

// What `plan` knows of a weight: everything but its name and values.
WeightSpec spec_of(std::int64_t m, std::int64_t n, const std::string& weight_dtype,
                   const py::kwargs& options) {
  WeightSpec spec;
  spec.name = "weight";
  spec.rows = m;
  spec.cols = n;
  spec.dtype = parse_dtype(weight_dtype);
  weight_keywords().set(spec, options);
  return spec;
}

using IntOfName = py::typing::Dict<py::str, py::int_>;

// What a device takes of each tier does not depend on its ordinal.
DeviceId device_of(bool on_host) { return on_host ? DeviceId::host() : DeviceId::cuda(0); }

IntOfName weight_plan(std::int64_t m, std::int64_t n, const std::string& weight_dtype,
                      bool speculative, bool on_host, const py::kwargs& options) {
  const WeightSpec spec = spec_of(m, n, weight_dtype, options);
  const WeightPlan plan = plan_weight(spec, speculative, device_of(on_host));
  IntOfName result;
  result["core_rows"] = plan.core.rows;
  result["core_cols"] = plan.core.cols;
  result["d2h_bytes"] = plan.d2h_bytes;
  result["h2d_bytes"] = plan.h2d_bytes;
  result["device_bytes"] = plan.device_bytes + plan.projector_bytes;
  result["scan_bytes"] = plan.scan_bytes;
  result["host_bytes"] = plan.host_bytes;
  result["host_scratch_bytes"] = plan.host_scratch_bytes;
  result["pinned_bytes"] = plan.pinned_bytes;
  result["held_bytes"] = plan.held_bytes;
  result["fit_bytes"] = plan.fit_bytes;
  result["project_scratch_elems"] = project_scratch_elems(spec.codec, m, n);
  return result;
}

using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::vector<WeightSpec> specs_of(const Shapes& shapes, const std::string& weight_dtype,
                                 const py::kwargs& options) {
  std::vector<WeightSpec> specs;
  specs.reserve(shapes.size());
  for (const auto& [m, n] : shapes) specs.push_back(spec_of(m, n, weight_dtype, options));
  return specs;
}

std::uint64_t shared_device_bytes(const Shapes& shapes, const std::string& weight_dtype,
                                  bool refreshed, bool on_host, const py::kwargs& options) {
  std::vector<WeightPlan> plans;
  for (const WeightSpec& spec : specs_of(shapes, weight_dtype, options)) {
    plans.push_back(plan_weight(spec, false, device_of(on_host)));
  }
  return shared_bytes(plans, refreshed, device_of(on_host));
}

std::uint64_t pinned_of_all(std::size_t weights, bool on_host) {
  return shared_pinned_bytes(weights, device_of(on_host));
}

// Shape and keywords of each.
using Weights = std::vector<std::pair<std::pair<std::int64_t, std::int64_t>, py::dict>>;

AutoCodec choose_codec(const Weights& weights, const std::map<std::string, std::uint64_t>& free,
                       const std::string& weight_dtype, std::int64_t tokens_per_step,
                       std::int64_t total_steps, std::int64_t backwards, std::int64_t refresh_every,
                       std::int64_t residual_every, bool speculative, bool on_host) {
  std::vector<WeightSpec> specs;
  specs.reserve(weights.size());
  for (const auto& [shape, options] : weights) {
    const auto keywords = py::reinterpret_borrow<py::kwargs>(options);
    specs.push_back(spec_of(shape.first, shape.second, weight_dtype, keywords));
  }
  Budget::Limits limits{};
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    const auto found = free.find(std::string(to_string(static_cast<Tier>(tier))));
    limits[tier] = found == free.end() ? Budget::kUnlimited : found->second;
  }
  return auto_codec(
      specs, device_of(on_host), limits,
      {tokens_per_step, total_steps, backwards, refresh_every, residual_every, speculative});
}

py::object shortage_of(const AutoCodec& choice) {
  if (!choice.shortage) return py::none();
  return py::make_tuple(to_string(choice.shortage->tier), choice.shortage->needed,
                        choice.shortage->free);
}

}  // namespace

void bind_weight_plan(py::module_& m) {
  m.def("weight_plan", &weight_plan, py::arg("m"), py::arg("n"), py::arg("weight_dtype"),
        py::arg("speculative"), py::arg("on_host"),
        "Bytes per tier and per step of one m x n weight, without allocating anything; "
        "on_host: on the host device, not a CUDA device. More keywords as of WeightSpec.");
  m.def("shared_device_bytes", &shared_device_bytes, py::arg("shapes"), py::arg("weight_dtype"),
        py::arg("refreshed"), py::arg("on_host"),
        "Device bytes that weights of these shapes share, whether or not their projectors are "
        "replaced on the way; more keywords as of WeightSpec.");
  m.def("shared_pinned_bytes", &pinned_of_all, py::arg("weights"), py::arg("on_host"),
        "Pinned bytes that so many weights share: what scans of their gradients arrive in.");
  py::class_<AutoCodec>(m, "AutoCodec", "What codec=\"auto\" is, and what svd would cost.")
      .def_property_readonly("name", [](const AutoCodec& c) { return std::string(c.name); })
      .def_readonly("pays", &AutoCodec::pays,
                    "A core of this ratio, in such a run, ended lower than none.")
      .def_property_readonly("shortage", &shortage_of,
                             "A tier that has not what these weights need with svd, and its bytes "
                             "needed and free; None: it fits.")
      .def_readonly("products", &AutoCodec::products, "Of svd, as a share of a run.")
      .def_readonly("calibration", &AutoCodec::calibration, "Likewise.")
      .def_readonly("most", &AutoCodec::most, "svd is taken where both together are less.")
      .def_readonly("least_tokens", &AutoCodec::least_tokens,
                    "A step has to have as many for a core of these weights to pay.")
      .def_property_readonly_static(
          "most_steps", [](const py::object&) { return kMostSteps; },
          "A run may have as many for a core to pay.")
      .def_property_readonly_static(
          "measured_ratio", [](const py::object&) { return kMeasuredRatio; },
          "A core has to have this much of each side.");
  m.def(
      "auto_codec", &choose_codec, py::arg("weights"), py::arg("free"), py::arg("weight_dtype"),
      py::arg("tokens_per_step"), py::arg("total_steps"), py::arg("backwards"),
      py::arg("refresh_every"), py::arg("residual_every"), py::arg("speculative"),
      py::arg("on_host"),
      "What codec=\"auto\" is for weights of these shapes and keywords, those of WeightSpec, in a "
      "run of so many steps, each of so many tokens in so many backwards; free: bytes of each "
      "tier, one that is missing has "
      "enough; refresh_every: steps between two fits, 0 for one; residual_every: between two "
      "residuals of a weight; speculative: moments are kept twice.");
}

}  // namespace sluiceway
