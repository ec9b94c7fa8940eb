// Measures projectors on gradients of their weights, and replaces those of codecs that learn.
//
// A weight calibrates when its turn comes (compress/refresh_policy.h), on the first gradient of a
// step. Between begin() and end() it instead calibrates on gradients of a separate batch from the
// caller; these are not accumulated.
//
// A measurement returns numbers, so it waits for the stream.
//
// Thread safety: one thread at a time, while no lane has the weight.
// Errors:        InvalidArgument from the constructor: a codec learns, but there is no learner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compress/learner.h"
#include "compress/refresh_policy.h"
#include "runtime/engine/subspace/subspace_weight.h"

namespace sluiceway {

// Counts since the last take_use().
struct CalibrationUse {
  double seconds = 0;               // Included in the step's time.
  std::uint64_t refreshed = 0;      // Projectors replaced.
  std::optional<double> bias_mean;  // Relative bias, over the weights where it was measured.
};

class Calibration {
 public:
  using Weights = std::vector<std::unique_ptr<SubspaceWeight>>;

  Calibration(const RefreshPolicy::Config& when, const RefreshOptions& how,
              std::unique_ptr<ProjectorLearner> learner, const Weights& weights);

  // Returns whether to measure the first gradient of this step.
  bool due(std::int64_t step, int index, const SubspaceWeight& weight) const;
  bool closure_due(std::int64_t step) const;  // The caller's batch is due.
  void begin() noexcept { active_ = true; }
  void end() noexcept { active_ = false; }
  bool active() const noexcept { return active_; }

  void measure(std::int64_t step, int index, SubspaceWeight& weight, const AnyMatrix& g,
               std::span<float> scratch, StreamRef stream);

  RefreshPolicy& policy() noexcept { return policy_; }
  CalibrationUse take_use() noexcept;

 private:
  CalibrationSource source_;
  RefreshPolicy policy_;
  RefreshOptions how_;
  std::unique_ptr<ProjectorLearner> learner_;
  std::vector<int> projected_;  // Indices of the weights with projectors.
  bool active_ = false;
  CalibrationUse use_;
  double bias_sum_ = 0;
  std::uint64_t bias_count_ = 0;
};

}  // namespace sluiceway
