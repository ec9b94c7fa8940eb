// Decides which weights measure and may replace their projectors in a step, and on whose gradient.
//
// Weights take turns in sweeps: each weight has one turn a sweep. A sweep starts every `every`
// steps, the first at step 0, so that no codec that learns keeps a random projector.
//
//   closure   the caller supplies a held-back batch before the step; all weights have their turn
//             together, in the first step of a sweep
//   rolling   `per_step` weights a step, in order, form the true gradient of their micro-batch; a
//             sweep takes as many steps as that needs, even if that is more than `every`
//
// If a rolling weight's turn passes without a measurement (it had no gradient), it stays due until
// it has one. A closure is due only in the first step of a sweep. The answer depends only on the
// configuration, the step and past measurements.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sluiceway {

enum class CalibrationSource : std::uint8_t { kClosure, kRolling };
CalibrationSource parse_calibration_source(std::string_view name);  // "closure", "rolling"

class RefreshPolicy {
 public:
  struct Config {
    std::int64_t every = 0;  // Steps between two measurements of a weight; 0: never.
    CalibrationSource source = CalibrationSource::kRolling;
    int per_step = 4;  // Weights a step, for rolling.
  };

  // The interval of the codec's family, unless the user sets one.
  static Config default_config(std::string_view codec);

  RefreshPolicy(Config config, int weights);  // Throws InvalidArgument for a negative number.

  // True from the weight's turn until measured() is called for it.
  bool due(std::int64_t step, int weight) const;
  std::vector<int> due(std::int64_t step) const;  // All such weights, ascending.

  void measured(std::int64_t step, int weight);

  // Saves the steps of the last measurements; load(save()) gives the same answers from then on.
  std::vector<std::byte> save() const;
  // Throws Corrupt if not a state of this many weights.
  void load(std::span<const std::byte> state);

 private:
  std::int64_t last_turn(std::int64_t step, int weight) const;  // -1: none so far.

  Config config_;
  std::int64_t period_ = 0;                  // Steps of a sweep.
  std::vector<std::int64_t> last_measured_;  // -1: never.
};

}  // namespace sluiceway
