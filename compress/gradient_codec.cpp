// Code that all codecs share: bias, refresh, and undoing a refresh that fails.
#include "compress/gradient_codec.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "compress/codec_families.h"
#include "kernels/base/check.h"
#include "kernels/overflow_scan.h"

namespace sluiceway {

GradientCodec::GradientCodec(const CodecRequest& request)
    : family_(request.family), result_(request.device, request.budget, "what a codec measures") {}

std::string_view GradientCodec::name() const noexcept { return family_.name; }

bool GradientCodec::learns() const noexcept { return family_.learns; }

void GradientCodec::project(Side /*side*/, const AnyMatrix& /*w*/, const AnyMatrix& /*g*/,
                            std::span<float> /*scratch*/, StreamRef /*stream*/) const {
  throw Unavailable(concat("project: codec ", name(),
                           " has no projectors for rows; use a codec that has them, for example "
                           "block_random"));
}

BiasNorm GradientCodec::bias(const AnyMatrix& g, std::span<float> scratch, StreamRef stream) const {
  return measure_bias(g, scratch, stream);
}

// Relative bias before there are projectors: the whole gradient. Needs no products.
double GradientCodec::lost_without_projectors(const AnyMatrix& g, StreamRef stream) const {
  const auto scan =
      result_.of<ScanResult>(stream, [&](ScanResult* to) { overflow_scan(g, to, stream); });
  if (!scan.finite) return std::numeric_limits<double>::quiet_NaN();
  return scan.sum_squares > 0 ? 1 : 0;
}

RefreshOutcome GradientCodec::refresh(const AnyMatrix& g, const RefreshOptions& options,
                                      ProjectorLearner& learner, const Moments& moments,
                                      std::span<float> scratch, StreamRef stream) {
  RefreshOutcome outcome;
  if (!learns()) return outcome;
  const bool first = wants_calibration();
  const std::size_t copied = first ? 0 : kept_elems();
  SLUICEWAY_CHECK(scratch.size() >= scratch_elems() + copied, "refresh: scratch has ",
                  scratch.size(), " elements, expected ", scratch_elems() + copied,
                  " or more: the old projectors stay in it until the new ones are accepted");
  const auto start = std::chrono::steady_clock::now();
  const std::span<float> work = scratch.first(scratch.size() - copied);
  outcome.bias_before =
      first ? lost_without_projectors(g, stream) : relative_bias(measure_bias(g, work, stream));
  outcome.bias_after = outcome.bias_before;
  // A gradient of zeros or with a value that is not finite teaches nothing.
  if (std::isfinite(outcome.bias_before) && outcome.bias_before > (first ? 0 : options.threshold)) {
    outcome.refreshed =
        replace(g, options, learner, moments, work, scratch.last(copied), stream, outcome);
  }
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return outcome;
}

bool GradientCodec::replace(const AnyMatrix& g, const RefreshOptions& options,
                            ProjectorLearner& learner, const Moments& moments,
                            std::span<float> scratch, std::span<float> copy, StreamRef stream,
                            RefreshOutcome& outcome) {
  if (!copy.empty()) keep(copy);
  try {
    outcome.learn_steps = fit(g, options, learner, stream);
    const double bias_after = relative_bias(measure_bias(g, scratch, stream));
    if (!std::isfinite(bias_after)) {
      restore(copy);
      return false;
    }
    if (!copy.empty()) transport(options.transport, moments, copy);
    outcome.bias_after = bias_after;
  } catch (...) {
    restore(copy);
    throw;
  }
  ++generation_;
  return true;
}

int GradientCodec::fit(const AnyMatrix&, const RefreshOptions&, ProjectorLearner&, StreamRef) {
  throw Unavailable(concat("refresh: codec ", name(), " learns, but does not implement fit()"));
}

double relative_bias(const BiasNorm& norm) noexcept {
  return norm.grad_sq == 0 ? 0 : std::sqrt(norm.bias_sq / norm.grad_sq);
}

MomentTransport parse_transport(std::string_view name) {
  if (name == "projected") return MomentTransport::kProjected;
  if (name == "keep") return MomentTransport::kKeep;
  if (name == "reset") return MomentTransport::kReset;
  throw InvalidArgument(concat("refresh: transport is \"", name,
                               "\", expected \"projected\", \"keep\" or \"reset\""));
}

}  // namespace sluiceway
