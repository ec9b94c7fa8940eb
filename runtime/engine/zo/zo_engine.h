// Zeroth-order training of weights in host memory or in an arena: the ring that streams the
// weights, and the log that defines their theta.
//
// stream() sets the weights that a forward uses, in order; a pass of the ring is then a step or an
// evaluation. The halves of a step are measured at theta +- eps z of each direction. commit()
// writes their g into the log, which makes the step, and updates the ring. A pass ended by finish()
// changes nothing, so a step begun after it is the same step again.
//
// With an arena the log is opened with the arena's base, and consolidate() makes a new base. The
// ring has then read ahead from the old base, so it is dropped and made again.
//
// Directions are drawn from the run's seed, the step and the direction's number, which is the
// purpose of its noise.
//
// With low-rank noise, the effect of the log is kept as factors (low_rank_updates.h). begin_step(),
// begin_evaluation() and low_rank() update them when needed, and then wait for the streams that
// computed since. begin_step() makes room for the step: if the device has none, the ring is made
// again with fewer resident weights.
//
// Thread safety: as the ring.
// Errors:        as in scalar_log.h, weight_ring.h, zo_arena.h and low_rank_updates.h.
//                InvalidArgument: one step more than replay can add in one go, a new base with
//                low-rank noise; nothing was written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/zo/low_rank_updates.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/weight_ring.h"
#include "runtime/engine/zo/zo_arena.h"

namespace sluiceway {

struct ZoEngineOptions {
  explicit ZoEngineOptions(DeviceId device) noexcept : ring(device) {}

  WeightRingOptions ring;  // The family of the log's shape.
  std::string log_path;    // Made if it does not exist.
  LogShape shape;
  Base base;                 // Used without an arena, which has its own base.
  ZoArena* arena = nullptr;  // The ring's source; outlives the engine.
  float eps = 1e-3F;
  std::vector<ZoWeight> trained;  // All, once, for low-rank noise; vectors stay in memory.
};

class ZoEngine {
 public:
  explicit ZoEngine(const ZoEngineOptions& options);

  // Between passes; again when the forward has changed. A use has host memory, which outlives this,
  // or its number in the arena. Without this call, a pass streams nothing.
  void stream(std::vector<ZoWeight> uses);
  bool streams() const noexcept { return !uses_.empty(); }

  // ---- A pass ----
  void begin_step();
  void begin_evaluation();
  const void* acquire(int use, int direction, Side side, StreamRef compute);
  void release(int use, int direction, StreamRef compute);
  void commit(std::span<const float> g, std::span<const StepRate> rates, bool non_finite);
  void finish();  // Allowed without a pass.

  // ---- The log, between passes ----
  void rollback(std::uint64_t step);
  void restore(std::uint64_t entries);
  void branch(std::uint64_t step, const std::string& path) const { log_.branch(step, path); }
  void sync() { log_.sync(); }
  // If the arena throws, base and steps are unchanged. OutOfMemory from the ring: the base is the
  // new one. After either, the next pass makes the ring again.
  void consolidate(const ZoArena::Consolidation& how);
  const ScalarLog& log() const noexcept { return log_; }
  const LogShape& shape() const noexcept { return log_.history().header().shape; }
  // Turn the base into theta; for one group, use that group's scales.
  const ZoUpdates& updates() const noexcept { return updates_; }
  std::vector<double> gammas() const;
  // The noise of a direction in the next step.
  StepNoise noise(std::uint32_t direction) const;
  // Makes theta and its neighbours outside of the ring, on `compute`.
  LowRankUpdates& low_rank(StreamRef compute);

  // ---- Numbers ----
  WeightRing& ring();
  // Use of the ring; 0 while the ring has to be made again.
  EngineUse take_use() { return ring_ ? ring_->take_use() : EngineUse{}; }
  std::uint64_t take_disk_read() noexcept { return ring_ ? ring_->take_disk_read() : 0; }
  Trace& trace() noexcept { return *ring_options_.lanes.trace; }  // Shared by all its rings.

 private:
  enum class Passing : std::uint8_t { kNone, kStep, kEvaluation };

  void make_ring();
  void need_ring();
  void go_back(const std::function<void()>& change);
  void check_room(const char* function) const;
  std::unique_ptr<LowRankUpdates> make_factors(const ZoEngineOptions& options);
  void make_room();                   // For factors of the step that begins.
  bool give_way(std::uint64_t step);  // Frees resident weights for that; false: no change.
  void note(StreamRef compute);
  void catch_up();  // Adds the log's steps to factors; ends an interrupted pass.
  void replay_all();
  void tell_ring();

  WeightRingOptions ring_options_;
  float eps_;
  ZoArena* arena_;
  std::unique_ptr<LowRankUpdates> low_rank_;  // Null: noise is elementwise.
  ScalarLog log_;                             // Made after everything else.
  ZoUpdates updates_;
  std::vector<ZoWeight> uses_;
  std::vector<StreamRef> computes_;  // Used since factors were written; the last one at the end.
  std::optional<WeightRing> ring_;
  Passing passing_ = Passing::kNone;
};

}  // namespace sluiceway
