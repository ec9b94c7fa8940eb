// Computes the effect of a scalar log on a base: the pending updates of a group, and its Gamma.
//
//   theta_{t+1} = (1 - lr_t wd_t) theta_t - lr_t / q sum_d g_t,d z_t,d             docs/zo_log.md
//   Gamma_{t+1} = Gamma_t (1 - lr_t wd_t),   Gamma = 1 at the base                 section 3
//   A_{t+1}     = A_t + sum_d c_t,d z_t,d,   A = the base
//   c_t,d       = -(lr_t g_t,d) / (q Gamma_{t+1})
//   theta_t     = float(Gamma_t) A_t
//
// Thread safety: pure functions.
// Numerics:      double, with each operation as written and rounded once; c and Gamma_t are then
//                rounded once to float. The same bits on every machine.
// Errors:        InvalidArgument: a step or group that does not exist; a factor 1 - lr wd that is
//                not positive; a Gamma or c beyond the range of a normal float.
// Cost:          all steps from the base to the last one requested, some ns each.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/engine/zo/log_history.h"

namespace sluiceway {

struct ReplayedUpdate {
  std::uint64_t step = 0;
  std::uint32_t direction = 0;
  float scale = 0;  // c, for z of this step and direction.

  friend bool operator==(const ReplayedUpdate&, const ReplayedUpdate&) = default;
};

struct Replay {
  float gamma = 1;  // At the last step.
  std::vector<ReplayedUpdate> updates;

  friend bool operator==(const Replay&, const Replay&) = default;
};

// Returns updates in the order of addition, by step and then by direction. The updates of steps
// from `from` to before `to` turn A of `from` into A of `to`, and `gamma` turns that into theta of
// `to`.
Replay replay(const LogHistory& history, const Base& base, std::uint32_t group, std::uint64_t from,
              std::uint64_t to);

double decay_factor(double lr, double weight_decay);
float update_scale(double lr, float g, std::uint32_t directions, double gamma_after);
float gamma_as_float(double gamma);

// Returns Gamma of each group at a step; never throws for its size, so it may be 0.
std::vector<double> gammas(const LogHistory& history, const Base& base, std::uint64_t step);

}  // namespace sluiceway
