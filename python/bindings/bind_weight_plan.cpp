#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "kernels/base/check.h"
#include "python/bindings/bindings.h"
#include "runtime/engine/subspace/weight_plan.h"

namespace sluiceway {
namespace {

DType parse_dtype(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  SLUICEWAY_CHECK(name == "fp16", "dtype: is \"", name, "\", expected fp32, bf16 or fp16");
  return DType::kF16;
}

// What `plan` knows of a weight: everything but its name and values.
WeightSpec spec_of(const std::string& codec, std::int64_t m, std::int64_t n,
                   const py::kwargs& rest) {
  WeightSpec spec;
  spec.name = "weight";
  spec.rows = m;
  spec.cols = n;
  spec.dtype = parse_dtype(rest["weight_dtype"].cast<std::string>());
  spec.codec.name = codec;
  spec.codec.ratio = rest["ratio"].cast<double>();
  spec.codec.d = rest["d"].cast<std::int64_t>();
  spec.codec.nnz = rest["nnz"].cast<std::int64_t>();
  spec.codec.block = rest["block"].cast<std::int64_t>();
  spec.wire = parse_wire(rest["wire"].cast<std::string>());
  spec.tier = parse_core_tier(rest["tier"].cast<std::string>());
  spec.rounding = parse_rounding(rest["weight_update"].cast<std::string>(), spec.dtype);
  spec.residual = parse_residual(rest["residual"].cast<std::string>());
  spec.second_moment = parse_second_moment(rest["second_moment"].cast<std::string>());
  return spec;
}

using IntOfName = py::typing::Dict<py::str, py::int_>;

IntOfName weight_plan(const std::string& codec, std::int64_t m, std::int64_t n, bool speculative,
                      bool held, const py::kwargs& rest) {
  const WeightPlan plan = plan_weight(spec_of(codec, m, n, rest), speculative);
  IntOfName result;
  result["core_rows"] = plan.core.rows;
  result["core_cols"] = plan.core.cols;
  result["d2h_bytes"] = plan.d2h_bytes;
  result["h2d_bytes"] = plan.h2d_bytes;
  result["device_bytes"] = plan.device_bytes + plan.projector_bytes + (held ? plan.held_bytes : 0);
  result["scratch_bytes"] = plan.scratch_bytes;
  result["host_bytes"] = plan.host_bytes;
  result["pinned_bytes"] = plan.pinned_bytes;
  return result;
}

std::string choose_codec(const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                         std::uint64_t device_bytes, const py::kwargs& rest) {
  std::vector<WeightSpec> specs;
  specs.reserve(shapes.size());
  for (const auto& [m, n] : shapes) specs.push_back(spec_of("auto", m, n, rest));
  return std::string(auto_codec(specs, device_bytes));
}

}  // namespace

void bind_weight_plan(py::module_& m) {
  m.def("weight_plan", &weight_plan, py::arg("codec"), py::arg("m"), py::arg("n"),
        py::arg("speculative"), py::arg("held"),
        "Bytes per tier and per step of one m x n weight, without allocating anything. Keywords, "
        "as of WeightSpec: ratio d nnz block wire tier weight_update residual second_moment, and "
        "weight_dtype.");
  m.def("auto_codec", &choose_codec, py::arg("shapes"), py::arg("device_bytes"),
        "The family that \"auto\" is for weights of these shapes; keywords as of weight_plan.");
}

}  // namespace sluiceway
