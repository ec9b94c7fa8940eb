// The noise and the updates of zeroth-order steps, and the work of a pass that streams with them.
//
// A step reads two copies of a weight for each direction, theta + eps z and theta - eps z; an
// evaluation reads theta. Rounds of the ring are directions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/noise.h"
#include "kernels/perturb.h"
#include "runtime/engine/stream/ring_client.h"

namespace sluiceway {

class LowRankUpdates;

// The two halves of a step.
enum class Side : std::uint8_t { kPlus, kMinus };

struct StepNoise {
  std::uint64_t seed = 0;  // Of the run.
  std::uint64_t step = 0;
  std::uint32_t purpose = 0;
  float eps = 0;
};

// The log since the base, in the order of the steps: theta = gamma (base + sum of scale z).
struct ZoUpdates {
  struct Record {
    StepNoise noise;           // Its eps is not used.
    std::vector<float> scale;  // By group; a group beyond the end has 0.
  };
  std::vector<float> gamma;     // By group; a group beyond the end has 1.
  std::vector<Record> records;  // Empty for low-rank noise (low_rank_updates.h).
};

inline float of_group(const std::vector<float>& values, int group, float otherwise) {
  const auto i = static_cast<std::size_t>(group);
  return i < values.size() ? values[i] : otherwise;
}

// Returns the updates of a weight, for Theta::pending.
std::vector<PendingUpdate> pending_of(const ZoUpdates& updates, std::uint64_t tensor, int group);

// Steps that are written into weights, each as a log with that single step writes its new base.
//
//   A = W,  A <- fma(c_d, z_d, A)                  each direction, ascending
//   W <- round(float(1 - lr wd) A)                 W is of the step before, then of this one
//
// c and 1 - lr wd are computed as in replay.h, with a Gamma that begins at 1. f32 weights take the
// number as it is. bf16 weights are rounded at random, with the bits of a new base (log_theta.h) at
// the step that they reach. Several steps are several such lines.
//
// Numerics: as materialise(): the same bits for any split and on every device.
// Cost:     each step reads and writes the weight once, and draws its noise.
struct WrittenSteps {
  std::uint64_t next() const noexcept { return first + steps.size(); }

  std::uint64_t run_seed = 0;
  NoiseFamily family = NoiseFamily::kRademacher;
  std::uint64_t first = 0;                              // The first of these steps.
  std::vector<std::shared_ptr<const ZoUpdates>> steps;  // Each with its own updates only.
};

// Brings elements of a weight, from element `first` on, on the device of `stream`, from step `from`
// to steps.next(). InvalidArgument: a step that is not among them.
void write_steps(const WrittenSteps& steps, const StreamedWeight& weight, std::uint64_t first,
                 std::span<std::byte> elements, std::uint64_t from, StreamRef stream);

struct ZoPass final : PassWork {
  int rounds() const override { return std::max(1, static_cast<int>(noises.size())); }
  bool has_pairs() const override { return !noises.empty(); }
  void make_copies(const StreamedWeight& weight, int round, const TurnCopies& copies,
                   StreamRef stream) const override;
  std::uint64_t next_step() const override { return steps ? steps->next() : 0; }
  void write_steps(const StreamedWeight& weight, std::span<std::byte> elements, std::uint64_t from,
                   StreamRef stream) const override;

  NoiseFamily family = NoiseFamily::kRademacher;
  std::vector<StepNoise> noises;              // By direction; none: an evaluation.
  std::shared_ptr<const ZoUpdates> updates;   // That turn streamed weights into theta; null: none.
  std::shared_ptr<const WrittenSteps> steps;  // Null: weights are only read.
  const LowRankUpdates* low_rank = nullptr;   // Null: noise is elementwise.
};

}  // namespace sluiceway
