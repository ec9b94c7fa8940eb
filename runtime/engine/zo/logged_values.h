// The values of weights that a base and a log define: theta = Gamma (base + sum of c z).
//
// The base is in host memory or in an arena, which can hold a new one. The log has one entry for
// each step. With low-rank noise, the effect of the log is kept as factors (low_rank_updates.h).
//
// Thread safety: one thread at a time.
// Lifetime:      the arena outlives this.
// Errors:        as in scalar_log.h, zo_arena.h and low_rank_updates.h. InvalidArgument: one step
//                more than replay can add in one go, a new base with low-rank noise; nothing was
//                written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/zo/low_rank_updates.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/zo_arena.h"
#include "runtime/engine/zo/zo_pass.h"

namespace sluiceway {

class LoggedValues {
 public:
  struct Options {
    std::string log_path;  // Made if it does not exist.
    LogShape shape;
    Base base;                            // Used without an arena, which has its own base.
    ZoArena* arena = nullptr;             // Source of the weights.
    std::vector<StreamedWeight> trained;  // All, once, for low-rank noise; vectors stay in memory.
  };
  // Low-rank noise keeps its factors on `device`, within `budget`.
  LoggedValues(const Options& options, const std::optional<Budget>& budget, DeviceId device);

  const ScalarLog& log() const noexcept { return log_; }
  const LogShape& shape() const noexcept { return log_.history().header().shape; }
  const std::shared_ptr<const ZoUpdates>& updates() const noexcept { return updates_; }
  LowRankUpdates* low_rank() const noexcept { return low_rank_.get(); }  // Null: elementwise noise.

  void check_room(const char* function) const;  // Throws if no step may follow.
  void commit(std::span<const float> g, std::span<const StepRate> rates, bool non_finite);
  void rollback(std::uint64_t step);
  void restore(std::uint64_t entries);
  void sync() { log_.sync(); }
  // Throws if consolidate() would refuse; nothing was changed.
  void check_consolidates() const;
  void consolidate(const ZoArena::Consolidation& how);

 private:
  void replay_all();

  ZoArena* arena_;
  std::unique_ptr<LowRankUpdates> low_rank_;
  ScalarLog log_;  // Made after everything else.
  std::shared_ptr<const ZoUpdates> updates_;
};

}  // namespace sluiceway
