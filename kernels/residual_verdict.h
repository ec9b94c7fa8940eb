// Says whether one residual trains its weight, and by how much.
//
// It lies where the residual's kernels run. Each of them reads it, and the next one is enqueued
// before anybody has looked at it, so the host never waits (residual.h, factored_moment.h).
//
//   steps    how often the factored moments have advanced, over all residuals of the weight
//   trains   set by mean_squares(): R is finite, and more than rounding
//   rms      set by residual_clip(): root of the mean square of U
//   alpha    the factor of U: mean_squares() sets it to -lr, residual_clip() clips it
#pragma once

#include <cstdint>

namespace sluiceway {

struct ResidualVerdict {
  std::int64_t steps = 0;
  double rms = 0;
  float alpha = 0;
  bool trains = false;
};

}  // namespace sluiceway
