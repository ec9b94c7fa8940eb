// Computes theta of a step from the bytes of a base and the log, weight by weight.
//
//   z of update (step t, direction d)   NoiseKey{run seed, t, stable_hash(name), d}
//   rounding of a new base of step s    NoiseKey{run seed, s, stable_hash(name), 2^31}
//
// Both depend only on the run and the step. So a consolidation repeated after an interruption
// rounds in the same way as one that was never interrupted.
//
// Ownership:     owns everything that it took from the log.
// Thread safety: const calls from any thread; a caller goes parallel over ranges of a weight.
// Numerics:      as materialise(): equal bits for any split. More than kMaxPending updates are
//                added in several rounds through f32, which changes no bit.
// Errors:        InvalidArgument: noise that is not elementwise, recorded seeds, a group that the
//                log does not have, and the errors of replay().
// Cost:          each update draws its noise once for every element (kernels/noise.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/noise.h"
#include "kernels/perturb.h"
#include "runtime/engine/zo/arena_plan.h"
#include "runtime/engine/zo/scalar_log.h"

namespace sluiceway {

// Larger than the number of any direction.
inline constexpr std::uint32_t kBaseRoundingPurpose = 1U << 31;

// Rounding of a weight for a new base of a log or of masters: random, where possible.
struct BaseRounding {
  BaseRounding(DType dtype, std::uint64_t run_seed, std::uint64_t step,
               std::uint64_t tensor) noexcept
      : rounding(dtype == DType::kBF16 ? Rounding::kStochastic : Rounding::kNearest),
        key{run_seed, step, tensor, kBaseRoundingPurpose} {}

  Rounding rounding;
  NoiseKey key;  // With the step that the weight reaches.
};

class LogTheta {
 public:
  // Starts from the base that the log uses.
  LogTheta(const ScalarLog& log, std::uint64_t step, std::span<const ArenaWeight> weights);

  // Returns whether a weight equals the base, bit for bit.
  bool is_base(const ArenaWeight& weight) const;
  // Turns whole elements of a weight, from element `first` on, from the base into a new base.
  void apply(const ArenaWeight& weight, std::uint64_t first, std::span<std::byte> elements) const;

 private:
  std::uint64_t run_seed_;
  std::uint64_t step_;
  NoiseFamily family_;
  std::vector<Replay> groups_;
};

}  // namespace sluiceway
