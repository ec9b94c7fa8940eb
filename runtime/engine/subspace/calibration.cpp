#include "runtime/engine/subspace/calibration.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/trace/trace.h"

namespace sluiceway {
namespace {

bool has_projectors(const SubspaceWeight& weight) {
  return weight.plan.projector_bytes > 0 || weight.codec->learns();
}

}  // namespace

Calibration::Calibration(const RefreshPolicy::Config& when, const RefreshOptions& how,
                         std::unique_ptr<ProjectorLearner> learner, const Weights& weights)
    : source_(when.source),
      policy_(when, static_cast<int>(weights.size())),
      how_(how),
      learner_(std::move(learner)) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (has_projectors(*weights[i])) projected_.push_back(static_cast<int>(i));
  }
  const auto learning = std::find_if(weights.begin(), weights.end(),
                                     [](const auto& weight) { return weight->codec->learns(); });
  SLUICEWAY_CHECK(learner_ != nullptr || learning == weights.end(),
                  "SubspaceEngine: no learner was passed, but one is needed to fit codec ",
                  (*learning)->codec->name());
}

bool Calibration::due(std::int64_t step, int index, const SubspaceWeight& weight) const {
  const bool turn =
      source_ == CalibrationSource::kRolling && weight.has_core() && policy_.due(step, index);
  return turn || weight.codec->wants_calibration();
}

bool Calibration::closure_due(std::int64_t step) const {
  return source_ == CalibrationSource::kClosure &&
         std::any_of(projected_.begin(), projected_.end(),
                     [&](int index) { return policy_.due(step, index); });
}

void Calibration::measure(std::int64_t step, int index, SubspaceWeight& weight, const AnyMatrix& g,
                          std::span<float> scratch, StreamRef stream) {
  const double begin_us = now_us();
  double bias = 0;
  if (weight.codec->learns()) {
    SLUICEWAY_CHECK(
        weight.codec->wants_calibration() || scratch.size() >= weight.refresh_scratch_elems(),
        "SubspaceEngine: calibration of ", weight.spec.name,
        " needs memory to fit its projectors again, but refresh is off; pass Refresh(every=) with "
        "1 or more steps, which reserves the memory");
    weight.moments.edit(weight.moments.live(), [&](const Moments& moments) {
      const RefreshOutcome outcome =
          weight.codec->refresh(g, how_, *learner_, moments, scratch, stream);
      use_.refreshed += outcome.refreshed ? 1 : 0;
      bias = outcome.bias_after;
    });
  } else {
    bias = relative_bias(weight.codec->bias(g, scratch, stream));
  }
  // This gradient gives no information; the next one may.
  if (!std::isfinite(bias) || (bias == 0 && weight.codec->learns())) return;
  bias_sum_ += bias;
  ++bias_count_;
  policy_.measured(step, index);
  use_.seconds += (now_us() - begin_us) * 1e-6;
}

CalibrationUse Calibration::take_use() noexcept {
  CalibrationUse use = std::exchange(use_, {});
  if (bias_count_ > 0) use.bias_mean = bias_sum_ / static_cast<double>(bias_count_);
  bias_sum_ = 0;
  bias_count_ = 0;
  return use;
}

}  // namespace sluiceway
