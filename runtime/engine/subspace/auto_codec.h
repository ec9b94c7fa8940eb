// Chooses the family of codec="auto", and computes the cost of svd: memory, products in every step,
// the fit.
//
// A core has to beat the residual alone, codec "none", which sends nothing over the link.
// experiments/regimes measured where it does: svd with cores of half of each side, from 1,024
// tokens per step (from 256 where weights are 16-bit), in runs of up to 500 steps. Elsewhere "auto"
// is none. It is block_random where a residual is not factored or takes turns, because nobody
// measured such a residual alone.
//
//   products      (backwards + 1 + [residual]) 2 n dm (m + dn)  /  6 m n T      summed over weights
//   calibration   fits * leading_directions_flop(m, n, dm, dn)  /  6 m n T steps
//
// Both are shares of 6 m n T, the flop of T tokens through a weight, forward and backward. Other
// work of the model makes the true shares smaller. docs/algorithm.md section 2.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/engine/subspace/weight_plan.h"
#include "runtime/memory/budget.h"

namespace sluiceway {

// svd is chosen where its products and its calibration together cost less than this share of a run.
// Such a core was measured to be worth 11 % more steps of 1,024 tokens (6 % after subtracting two
// standard errors),
inline constexpr double kMostOfARun = 0.06;
// and 21 % more steps of 4,096 tokens (14 % after subtracting two standard errors).
inline constexpr double kMostOfALargeStepRun = 0.14;
inline constexpr std::int64_t kLargeStep = 4096;
// A core was measured to end lower than the residual alone from this many tokens per step,
inline constexpr std::int64_t kLeastTokens = 1024;
inline constexpr std::int64_t kLeastTokens16Bit = 256;  // with 16-bit weights,
// in runs of up to this many steps (after 1,000 steps most of its gain was gone),
inline constexpr std::int64_t kMostSteps = 500;
// and with this share of each side: smaller cores ended no lower, and larger ones were not
// measured.
inline constexpr double kMeasuredRatio = 0.5;

// The length of a run, and the size of one step.
struct RunShape {
  std::int64_t tokens_per_step = 1024;  // Over all micro-batches.
  std::int64_t steps = 1000;
  std::int64_t backwards = 1;       // Micro-batches per step.
  std::int64_t refresh_every = 0;   // Steps between two fits of a weight; 0: it is fitted once.
  std::int64_t residual_every = 1;  // Steps between two residuals of a weight.
  bool speculative = false;         // Moments are stored twice.
};

// A tier that has too few bytes for these weights with svd.
struct Shortage {
  Tier tier = Tier::kDevice;
  std::uint64_t needed = 0, free = 0;
};

struct AutoCodec {
  std::string_view name;          // svd, none or block_random.
  bool pays = false;              // Such a core was measured to end lower than none in such a run.
  std::int64_t least_tokens = 0;  // Fewest tokens per step with which a core of these weights pays.
  std::optional<Shortage> shortage;
  double products = 0;        // Cost of the products of svd, as a share of a run.
  double calibration = 0;     // Cost of the fits of svd, as a share of a run.
  double most = kMostOfARun;  // The two shares together must be below this.
};

// `free` is the memory of each tier available to these weights. Weights with another codec than
// "auto" count only towards the memory. InvalidArgument: no tokens, steps or backwards.
AutoCodec auto_codec(std::span<const WeightSpec> specs, DeviceId device, const Budget::Limits& free,
                     const RunShape& run);

}  // namespace sluiceway
