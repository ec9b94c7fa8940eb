// What becomes of one residual: whether it trains its weight, and by how much.
//
// It lies where the residual's kernels run. Each of them reads it and the next is enqueued without
// a look at it, so the host waits for none (residual.h, factored_moment.h).
//
//   core     overflow_scan() of the core that was taken from the gradient
//   steps    how often the factored moments were advanced; goes on from residual to residual
//   trains   use_means(): R is finite, and more than rounding
//   rms      residual_clip(): root of the mean square of U
//   alpha    what U is multiplied with: -lr by use_means(), clipped by residual_clip()
#pragma once

#include <cstdint>

#include "kernels/overflow_scan.h"

namespace sluiceway {

struct ResidualVerdict {
  ScanResult core;
  std::int64_t steps = 0;
  double rms = 0;
  float alpha = 0;
  bool trains = false;
};

}  // namespace sluiceway
