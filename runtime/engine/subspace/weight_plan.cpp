#include "runtime/engine/subspace/weight_plan.h"

#include <algorithm>
#include <vector>

#include "compress/host_side.h"
#include "kernels/base/check.h"
#include "kernels/overflow_scan.h"
#include "runtime/device/device_memory.h"
#include "runtime/engine/computing_stream.h"
#include "runtime/memory/readback.h"

namespace sluiceway {

std::int64_t second_moment_elems(SecondMoment kind, const CoreShape& core) noexcept {
  return kind == SecondMoment::kFull ? core.elems() : core.rows + core.cols;
}

namespace {

void check_spec(const WeightSpec& spec) {
  SLUICEWAY_CHECK(spec.rows > 0 && spec.cols > 0, "plan_weight: ", spec.name, " is ", spec.rows,
                  "x", spec.cols, ", expected at least 1x1");
  if (spec.dtype == DType::kF16) {
    throw Unavailable(concat("plan_weight: ", spec.name,
                             " is f16, but this version updates only f32 and bf16 weights; keep "
                             "f32 weights and use autocast to f16"));
  }
  SLUICEWAY_CHECK((spec.dtype == DType::kF32) == (spec.rounding == Rounding::kNearest),
                  "plan_weight: ", spec.name, " is ", to_string(spec.dtype),
                  ", which does not fit its rounding; use nearest for f32 weights, and stochastic "
                  "or residual for bf16 weights");
  SLUICEWAY_CHECK(
      spec.residual != ResidualKind::kNone || resolve_codec(spec.codec.name) != "none",
      "plan_weight: ", spec.name,
      " has codec none and residual none, which trains nothing; set a residual or another codec");
  SLUICEWAY_CHECK(
      spec.residual == ResidualKind::kNone || resolve_codec(spec.codec.name) != "identity",
      "plan_weight: ", spec.name,
      " has codec identity, which leaves no residual; set residual none");
}

}  // namespace

WeightPlan plan_weight(const WeightSpec& spec, bool speculative, DeviceId device) {
  check_spec(spec);
  WeightPlan plan;
  plan.core = core_shape(spec.codec, spec.rows, spec.cols);
  plan.projector_bytes = projector_bytes(spec.codec, spec.rows, spec.cols);
  plan.scratch_bytes = sizeof(float) * codec_scratch_elems(spec.codec, spec.rows, spec.cols);
  plan.refresh_scratch_bytes =
      sizeof(float) * refresh_scratch_elems(spec.codec, spec.rows, spec.cols);
  plan.fit_bytes = fit_bytes(spec.codec, spec.rows, spec.cols);
  const auto elems = static_cast<std::uint64_t>(plan.core.elems());
  const auto second =
      static_cast<std::uint64_t>(second_moment_elems(spec.second_moment, plan.core));
  const std::uint64_t first_bytes = elems * sizeof(float), second_bytes = second * sizeof(float);
  const bool factored = spec.second_moment == SecondMoment::kFactored;
  plan.device_bytes = first_bytes + GradientResidual::bytes(spec.residual, spec.rows, spec.cols) +
                      ResultSlot::bytes(device);
  plan.scan_bytes = Readback<ScanResult>::reserved(Tier::kDevice, device, 1);
  if (spec.residual != ResidualKind::kNone) {
    plan.held_bytes = static_cast<std::uint64_t>(spec.rows * spec.cols) * size_bytes(spec.dtype);
  }
  if (spec.rounding == Rounding::kResidual) {
    plan.device_bytes += static_cast<std::uint64_t>(spec.rows * spec.cols) * sizeof(std::uint16_t);
  }
  if (spec.tier == CoreTier::kDevice) {
    const std::uint64_t roots = factored ? second_bytes : 0;
    plan.device_bytes += 2 * first_bytes + second_bytes + roots;  // First moment and direction.
    return plan;
  }
  const std::uint64_t wire = wire_bytes(spec.wire, plan.core.elems());
  plan.d2h_bytes = wire;
  plan.h2d_bytes = wire;
  plan.device_bytes += wire;                                     // Direction.
  if (spec.wire != WireFormat::kF32) plan.device_bytes += wire;  // Packed gradient.
  if (spec.wire == WireFormat::kInt8) plan.device_bytes += elems * sizeof(float);  // Unpacked.
  if (spec.wire == WireFormat::kInt8) plan.host_scratch_bytes = 2 * elems * sizeof(float);
  plan.host_bytes = (speculative ? 2 : 1) * (first_bytes + second_bytes);
  if (factored) plan.host_bytes += second_bytes;  // Roots.
  plan.pinned_bytes = 2 * round_up(static_cast<std::size_t>(wire), kPageBytes);
  return plan;
}

std::uint64_t shared_bytes(std::span<const WeightPlan> plans, bool refreshed, DeviceId device) {
  std::uint64_t most = 0, most_refreshed = 0;
  for (const WeightPlan& plan : plans) {
    most = std::max(most, plan.scratch_bytes);
    most_refreshed = std::max(most_refreshed, plan.refresh_scratch_bytes);
  }
  return most + (refreshed ? most_refreshed : most) + engine_scratch_bytes(device);
}

std::uint64_t shared_pinned_bytes(std::size_t weights, DeviceId device) noexcept {
  return Readback<ScanResult>::reserved(Tier::kPinned, device, weights);
}

CoreTier parse_core_tier(std::string_view name) {
  if (name == "host" || name == "auto") return CoreTier::kHost;
  SLUICEWAY_CHECK(name == "device", "parse_core_tier: tier is \"", name,
                  "\", expected host, device or auto");
  return CoreTier::kDevice;
}

SecondMoment parse_second_moment(std::string_view name) {
  if (name == "full") return SecondMoment::kFull;
  SLUICEWAY_CHECK(name == "factored", "parse_second_moment: second_moment is \"", name,
                  "\", expected full or factored");
  return SecondMoment::kFactored;
}

std::string_view to_string(SecondMoment kind) noexcept {
  return kind == SecondMoment::kFull ? "full" : "factored";
}

WireFormat parse_wire(std::string_view name) {
  if (name == "fp32") return WireFormat::kF32;
  if (name == "bf16") return WireFormat::kBF16;
  SLUICEWAY_CHECK(name == "int8", "parse_wire: wire is \"", name,
                  "\", expected fp32, bf16 or int8");
  return WireFormat::kInt8;
}

Rounding parse_rounding(std::string_view name, DType dtype) {
  SLUICEWAY_CHECK(name == "auto" || name == "stochastic" || name == "residual",
                  "parse_rounding: weight_update is \"", name,
                  "\", expected auto, stochastic or residual");
  if (dtype == DType::kF32) return Rounding::kNearest;
  return name == "residual" ? Rounding::kResidual : Rounding::kStochastic;
}

}  // namespace sluiceway
