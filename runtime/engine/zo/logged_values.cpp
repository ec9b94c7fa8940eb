#include "runtime/engine/zo/logged_values.h"

#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/perturb.h"

namespace sluiceway {
namespace {

ScalarLog open_log(const LoggedValues::Options& options) {
  const ArenaBase base = options.arena ? options.arena->base() : ArenaBase{options.base, {}};
  if (std::filesystem::exists(options.log_path)) {
    return ScalarLog::open(options.log_path, options.shape, base);
  }
  return ScalarLog::create(options.log_path, options.shape, base.base);
}

}  // namespace

LoggedValues::LoggedValues(const Options& options, const std::optional<Budget>& budget,
                           DeviceId device)
    : arena_(options.arena),
      low_rank_(options.shape.noise.rank == 0
                    ? nullptr
                    : std::make_unique<LowRankUpdates>(options.shape, options.trained,
                                                       budget.value(), device)),
      log_(open_log(options)) {
  replay_all();
}

void LoggedValues::check_room(const char* function) const {
  const std::size_t records = updates_->records.size();
  SLUICEWAY_CHECK(records + shape().directions <= kMaxPending, function, ": ", records,
                  " updates are pending on the base of step ", log_.base().step,
                  " and a step adds ", shape().directions, ", expected at most ", kMaxPending,
                  "; consolidate into a new base");
}

void LoggedValues::commit(std::span<const float> g, std::span<const StepRate> rates,
                          bool non_finite) {
  check_room("commit");
  const std::uint64_t step = log_.next_step();
  const std::uint32_t replayed = low_rank_ ? 0 : shape().directions;
  auto after = std::make_shared<ZoUpdates>(*updates_);
  const std::size_t before = after->records.size();
  for (std::uint32_t d = 0; d < replayed; ++d) {
    after->records.push_back({{shape().run_seed, step, d, 0}, {}});
    after->records.back().scale.reserve(shape().groups);
  }
  try {
    log_.append({.step = step, .g = g, .rates = rates, .seeds = {}, .non_finite = non_finite});
  } catch (...) {
    if (log_.next_step() != step) replay_all();  // It was written, and not synced.
    throw;
  }
  for (std::uint32_t group = 0; group < shape().groups; ++group) {
    const Replay last = log_.pending(group, step, step + 1);
    after->gamma.at(group) = last.gamma;
    for (std::uint32_t d = 0; d < replayed; ++d) {
      after->records.at(before + d).scale.push_back(last.updates.at(d).scale);
    }
  }
  updates_ = std::move(after);
}

// A change that throws may be written, and not synced.
void LoggedValues::rollback(std::uint64_t step) {
  try {
    log_.rollback(step);
  } catch (...) {
    replay_all();
    throw;
  }
  replay_all();
}

void LoggedValues::restore(std::uint64_t entries) {
  try {
    log_.restore(entries);
  } catch (...) {
    replay_all();
    throw;
  }
  replay_all();
}

void LoggedValues::check_consolidates() const {
  SLUICEWAY_CHECK(arena_ != nullptr,
                  "consolidate: the base is in host memory; "
                  "use an arena, which can hold a new base");
  SLUICEWAY_CHECK(low_rank_ == nullptr,
                  "consolidate: noise is of low rank, whose updates are summed "
                  "beside the base; "
                  "use elementwise noise");
}

void LoggedValues::consolidate(const ZoArena::Consolidation& how) {
  arena_->consolidate(log_, how);
  replay_all();
}

void LoggedValues::replay_all() {
  const std::uint64_t to = log_.next_step(), from = low_rank_ ? to : log_.base().step;
  if (low_rank_) low_rank_->forget();
  auto all = std::make_shared<ZoUpdates>();
  for (std::uint64_t step = from; step < to; ++step) {
    for (std::uint32_t d = 0; d < shape().directions; ++d) {
      all->records.push_back({{shape().run_seed, step, d, 0}, {}});
    }
  }
  for (std::uint32_t group = 0; group < shape().groups; ++group) {
    const Replay replay = log_.pending(group, from, to);
    all->gamma.push_back(replay.gamma);
    for (std::size_t i = 0; i < replay.updates.size(); ++i) {
      all->records.at(i).scale.push_back(replay.updates[i].scale);
    }
  }
  updates_ = std::move(all);
}

}  // namespace sluiceway
