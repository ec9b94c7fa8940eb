// Which family codec="auto" is, and what svd would cost: memory, products of every step, the fit.
//
// The residual alone, codec "none", is what a core has to beat: nothing of it crosses the link.
// experiments/regimes measured where one does: svd with cores of half of each side, from 1,024
// tokens a step, and from 256 where weights are 16-bit, in runs of up to 500 steps. Elsewhere
// "auto" is none, or block_random where a residual is not factored, or has turns, as nobody
// measured such a residual alone.
//
//   products      (backwards + 1 + [residual]) 2 n dm (m + dn)  /  6 m n T      summed over weights
//   calibration   fits * leading_directions_flop(m, n, dm, dn)  /  6 m n T steps
//
// T tokens take 6 m n T flop through a weight, forward and backward, which is what both are shares
// of; what else a model computes makes them smaller. docs/algorithm.md section 2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/engine/subspace/weight_plan.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

// svd is taken where its products and its calibration together are less than this of a run: such a
// core was measured to be worth 11 % more steps of 1,024 tokens, 6 % where two standard errors are
// taken off,
inline constexpr double kMostOfARun = 0.06;
// and 21 % more of 4,096, 14 % likewise.
inline constexpr double kMostOfALargeStepRun = 0.14;
inline constexpr std::int64_t kLargeStep = 4096;
// A core was measured to end lower than the residual alone from so many tokens a step,
inline constexpr std::int64_t kLeastTokens = 1024;
inline constexpr std::int64_t kLeastTokens16Bit = 256;  // of 16-bit weights,
// in runs of up to so many steps: after 1,000 most of what it had gained was gone,
inline constexpr std::int64_t kMostSteps = 500;
// and with this much of each side: smaller ones ended no lower, larger ones nobody measured.
inline constexpr double kMeasuredRatio = 0.5;

// How long a run is, and how much of it one step.
struct RunShape {
  std::int64_t tokens_per_step = 1024;  // Of all micro-batches.
  std::int64_t steps = 1000;
  std::int64_t backwards = 1;       // Micro-batches of a step.
  std::int64_t refresh_every = 0;   // Steps between two fits of a weight; 0: it is fitted once.
  std::int64_t residual_every = 1;  // Steps between two residuals of a weight.
  bool speculative = false;         // Moments are kept twice.
};

// A tier that has not the bytes which these weights need with svd.
struct Shortage {
  Tier tier = Tier::kDevice;
  std::uint64_t needed = 0, free = 0;
};

struct AutoCodec {
  std::string_view name;          // svd, none or block_random.
  bool pays = false;              // A core of this ratio, in such a run, ended lower than none.
  std::int64_t least_tokens = 0;  // A step has to have as many for a core of these weights to pay.
  std::optional<Shortage> shortage;
  double products = 0;        // Of svd, as a share of a run.
  double calibration = 0;     // Likewise.
  double most = kMostOfARun;  // Both together have to be less.
};

// `free` is what each tier has for these weights. Those of another codec than "auto" count towards
// the memory alone. InvalidArgument: no tokens, steps or backwards.
AutoCodec auto_codec(std::span<const WeightSpec> specs, DeviceId device, const Budget::Limits& free,
                     const RunShape& run);

}  // namespace sluiceway
