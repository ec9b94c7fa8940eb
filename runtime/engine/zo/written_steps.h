// Writes steps into weights, each step as a log with that single step writes its new base.
//
//   A = W,  A <- fma(c_d, z_d, A)                  each direction, ascending
//   W <- round(float(1 - lr wd) A)                 W is of the step before, then of this one
//
// c and 1 - lr wd are computed as in replay.h, with a Gamma that begins at 1. f32 weights take the
// number as it is. bf16 weights are rounded at random, with the bits of a new base (log_theta.h) at
// the step that they reach. Several steps are several such lines.
//
// Thread safety: immutable; write_steps() from any thread.
// Numerics:      as materialise(): the same bits for any split and on every device.
// Errors:        InvalidArgument: a step that is not among them.
// Cost:          each step reads and writes the weight once, and draws its noise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/noise.h"
#include "kernels/perturb.h"
#include "runtime/engine/zo/zo_weight.h"

namespace sluiceway {

struct WrittenSteps {
  std::uint64_t next() const noexcept { return first + steps.size(); }

  std::uint64_t run_seed = 0;
  NoiseFamily family = NoiseFamily::kRademacher;
  std::uint64_t first = 0;                              // The first of these steps.
  std::vector<std::shared_ptr<const ZoUpdates>> steps;  // Each with its own updates only.
};

// Returns the updates of a weight, for Theta::pending.
std::vector<PendingUpdate> pending_of(const ZoUpdates& updates, std::uint64_t tensor, int group);

// Brings elements of a weight, from element `first` on, on the device of `stream`, from step `from`
// to steps.next().
void write_steps(const WrittenSteps& steps, const ZoWeight& weight, std::uint64_t first,
                 std::span<std::byte> elements, std::uint64_t from, StreamRef stream);

}  // namespace sluiceway
