// Says which weights measure and may replace their projectors in a step, and on whose gradient.
//
// Weights take turns in sweeps: each weight has one turn a sweep, and a sweep starts every `every`
// steps, the first one at step 0, so that no codec that learns is left with a random projector.
//
//   closure   the caller gives a held-back batch before the step; all weights have their turn
//             together, in the first step of a sweep
//   rolling   `per_step` weights a step, in order, form the true gradient of their micro-batch; a
//             sweep takes as many steps as that needs, should they be more than `every`
//
// A rolling weight whose turn passed without a measurement (it had no gradient) stays due until it
// has one; a closure is asked for in the first step of a sweep only.
// The answer depends on the configuration, on the step and on what was measured, on nothing else.
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
    std::int64_t every = 0;  // Steps from one measurement of a weight to its next; 0: never.
    CalibrationSource source = CalibrationSource::kRolling;
    int per_step = 4;  // Weights a step; rolling only.
  };

  // What a codec gets that is not told otherwise: the interval of its family.
  static Config default_config(std::string_view codec);

  RefreshPolicy(Config config, int weights);  // InvalidArgument: a negative number.

  // True from the weight's turn until measured() is called for it.
  bool due(std::int64_t step, int weight) const;
  std::vector<int> due(std::int64_t step) const;  // All such weights, ascending.

  void measured(std::int64_t step, int weight);

  // The steps of the last measurements; load(save()) gives the same answers ever after.
  std::vector<std::byte> save() const;
  void load(std::span<const std::byte> state);  // Corrupt: not a state of this many weights.

 private:
  std::int64_t last_turn(std::int64_t step, int weight) const;  // -1: none so far.

  Config config_;
  std::int64_t period_ = 0;                  // Steps of a sweep.
  std::vector<std::int64_t> last_measured_;  // -1: never.
};

}  // namespace sluiceway
