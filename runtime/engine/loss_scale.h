// The loss scale: a factor that keeps 16-bit gradients away from zero and infinity.
//
//   dynamic: start 2^16; x 2 after 2000 clean steps in a row; x 0.5 on overflow, never below 1
//
// At the floor, training continues and overflows are counted; nothing is thrown (docs/numerics.md
// section 3).
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>

namespace sluiceway {

class LossScale {
 public:
  enum class Mode : std::uint8_t { kOff, kStatic, kDynamic };

  struct Config {
    Mode mode = Mode::kOff;
    double initial = 65536;
    double growth = 2;
    double backoff = 0.5;
    double floor = 1;
    std::int64_t growth_interval = 2000;  // Clean steps.
  };

  struct State {  // State for a resume.
    double value = 1;
    std::int64_t clean_steps = 0;
    std::int64_t overflows_at_floor = 0;
  };

  explicit LossScale(Config config);  // InvalidArgument: a value outside its range.

  double value() const noexcept { return state_.value; }
  void update(bool overflowed) noexcept;  // Once per step, after it was committed or skipped.

  const State& state() const noexcept { return state_; }
  void load(const State& state);  // InvalidArgument: value not positive and finite.

 private:
  Config config_;
  State state_;
};

}  // namespace sluiceway
