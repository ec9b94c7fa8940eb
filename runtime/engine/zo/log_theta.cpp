#include "runtime/engine/zo/log_theta.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/perturb.h"

namespace sluiceway {
namespace {

constexpr std::size_t kTile = 16384;  // Elements of f32 that stay in the cache between two rounds.

void check_noise(const LogShape& shape) {
  SLUICEWAY_CHECK(shape.noise.rank == 0 &&
                      shape.noise.family <= static_cast<std::uint32_t>(NoiseFamily::kGaussian),
                  "arena: the log's noise is family ", shape.noise.family, " of rank ",
                  shape.noise.rank, ", expected elementwise noise of a family up to ",
                  static_cast<std::uint32_t>(NoiseFamily::kGaussian));
  SLUICEWAY_CHECK(!shape.records_seeds,
                  "arena: the log records seeds; use a log whose directions follow from run seed, "
                  "step and number");
}

// Every update at once, or, through f32, as many at a time as fit. In place.
void materialise_all(std::span<std::byte> elements, DType dtype, Theta theta, Rounding rounding,
                     const NoiseKey& key) {
  if (theta.pending.size() <= kMaxPending) {
    return cpu::materialise(elements, dtype, elements, dtype, theta, rounding, key);
  }
  const std::span<const PendingUpdate> all = theta.pending;
  const float gamma = theta.gamma;
  std::vector<float> sums(std::min(kTile, elements.size() / size_bytes(dtype)));
  for (std::size_t at = 0; at < elements.size();) {
    const auto w = elements.subspan(at, std::min(kTile * size_bytes(dtype), elements.size() - at));
    const auto a = std::as_writable_bytes(std::span(sums).first(w.size() / size_bytes(dtype)));
    for (std::size_t k = 0; k < all.size(); k += kMaxPending) {
      const bool is_first = k == 0, is_last = all.size() - k <= kMaxPending;
      theta.pending = all.subspan(k, std::min(kMaxPending, all.size() - k));
      theta.gamma = is_last ? gamma : 1.0F;
      cpu::materialise(is_first ? w : a, is_first ? dtype : DType::kF32, is_last ? w : a,
                       is_last ? dtype : DType::kF32, theta,
                       is_last ? rounding : Rounding::kNearest, key);
    }
    at += w.size();
    theta.first += w.size() / size_bytes(dtype);
  }
}

}  // namespace

LogTheta::LogTheta(const ScalarLog& log, std::uint64_t step, std::span<const ArenaWeight> weights)
    : step_(step) {
  const LogShape& shape = log.history().header().shape;
  check_noise(shape);
  run_seed_ = shape.run_seed;
  family_ = static_cast<NoiseFamily>(shape.noise.family);
  for (const ArenaWeight& weight : weights) {
    SLUICEWAY_CHECK(weight.group < static_cast<int>(shape.groups), "arena: ", weight.name,
                    " is of group ", weight.group, ", expected a number below the log's ",
                    shape.groups);
  }
  for (std::uint32_t group = 0; group < shape.groups; ++group) {
    groups_.push_back(log.pending(group, log.base().step, step));
  }
}

bool LogTheta::is_base(const ArenaWeight& weight) const {
  if (!weight.is_trained()) return true;
  const Replay& replay = groups_.at(static_cast<std::size_t>(weight.group));
  return replay.updates.empty() && replay.gamma == 1.0F;
}

void LogTheta::apply(const ArenaWeight& weight, std::uint64_t first,
                     std::span<std::byte> elements) const {
  if (is_base(weight)) return;
  const Replay& replay = groups_[static_cast<std::size_t>(weight.group)];
  const std::uint64_t tensor = stable_hash(weight.name);
  std::vector<PendingUpdate> pending;
  pending.reserve(replay.updates.size());
  for (const ReplayedUpdate& update : replay.updates) {
    pending.push_back({{run_seed_, update.step, tensor, update.direction}, update.scale});
  }
  const BaseRounding of_base(weight.dtype, run_seed_, step_, tensor);
  materialise_all(elements, weight.dtype, {family_, first, replay.gamma, pending}, of_base.rounding,
                  of_base.key);
}

}  // namespace sluiceway
