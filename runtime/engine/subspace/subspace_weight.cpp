#include "runtime/engine/subspace/subspace_weight.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/philox.h"

namespace sluiceway {

SubspaceWeight::SubspaceWeight(WeightSpec weight_spec, DeviceId where, Budget& budget)
    : spec(std::move(weight_spec)),
      device(where),
      hash(stable_hash(spec.name)),
      plan(plan_weight(spec, false, device)),
      codec(make_codec(spec.codec, spec.rows, spec.cols, hash, device, budget)),
      staging(spec, plan, device, budget),
      moments(spec, plan.core, device, budget) {
  if (spec.residual != ResidualKind::kNone) {
    residual.emplace(spec.residual, spec.rows, spec.cols, device, budget, spec.name);
  }
  if (spec.rounding == Rounding::kResidual) {
    const auto elems = static_cast<std::size_t>(spec.rows * spec.cols);
    low_ = Buffer(budget, Tier::kDevice, device, elems * sizeof(std::uint16_t),
                  concat("low halves of ", spec.name));
  }
}

MatrixView<std::uint16_t> SubspaceWeight::low_bits() const noexcept {
  if (low_.size() == 0) return {};
  return {low_.as<std::uint16_t>().data(), spec.rows, spec.cols};
}

void SubspaceWeight::apply_residual(const AnyMatrix& whole, const AnyMatrix& w,
                                    const ResidualStep& step, std::span<float> scratch,
                                    StreamRef stream) {
  residual->apply(*codec, whole, staging.core(), w, low_bits(), step, scratch, stream);
}

void SubspaceWeight::apply(std::span<float> scratch, StreamRef stream) {
  if (applying.residual_due) {
    apply_residual(applying.residual_gradient, applying.weight, applying.residual_step, scratch,
                   stream);
  }
  if (!has_core()) return;
  codec->apply(applying.weight, low_bits(), staging.direction_on_device(stream), applying.update,
               scratch, stream);
}

}  // namespace sluiceway
