#include "kernels/base/check.h"
#include "python/bindings/bindings.h"
#include "runtime/engine/weight_plan.h"

namespace sluiceway {
namespace {

DType parse_dtype(const std::string& name) {
  if (name == "fp32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  SLUICEWAY_CHECK(name == "fp16", "dtype: is \"", name, "\", expected fp32, bf16 or fp16");
  return DType::kF16;
}

py::dict weight_plan(const std::string& codec, std::int64_t m, std::int64_t n, double ratio,
                     std::int64_t d, std::int64_t nnz, std::int64_t block, const std::string& wire,
                     const std::string& weight_update, const std::string& tier,
                     const std::string& norm_mode, const std::string& weight_dtype) {
  WeightSpec spec;
  spec.name = "weight";
  spec.rows = m;
  spec.cols = n;
  spec.dtype = parse_dtype(weight_dtype);
  spec.codec.name = codec;
  spec.codec.ratio = ratio;
  spec.codec.d = d;
  spec.codec.nnz = nnz;
  spec.codec.block = block;
  spec.wire = parse_wire(wire);
  spec.tier = parse_core_tier(tier);
  spec.rounding = parse_rounding(weight_update, spec.dtype);
  const WeightPlan plan = plan_weight(spec, norm_mode == "speculative");
  py::dict result;
  result["core_rows"] = plan.core.rows;
  result["core_cols"] = plan.core.cols;
  result["d2h_bytes"] = plan.d2h_bytes;
  result["h2d_bytes"] = plan.h2d_bytes;
  result["device_bytes"] = plan.device_bytes + plan.projector_bytes;
  result["host_bytes"] = plan.host_bytes;
  result["pinned_bytes"] = plan.pinned_bytes;
  return result;
}

}  // namespace

void bind_weight_plan(py::module_& m) {
  m.def(
      "resolve_codec", [](const std::string& name) { return resolve_codec(name); }, py::arg("name"),
      "The family that a codec name stands for; \"auto\" is one of them.");
  m.def("weight_plan", &weight_plan, py::arg("codec"), py::arg("m"), py::arg("n"), py::arg("ratio"),
        py::arg("d"), py::arg("nnz"), py::arg("block"), py::arg("wire"), py::arg("weight_update"),
        py::arg("tier"), py::arg("norm_mode"), py::arg("weight_dtype"),
        "Bytes per tier and per step of one m x n weight, without allocating anything.");
}

}  // namespace sluiceway
