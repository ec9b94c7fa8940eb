// Zeroth-order training [MeZO, ZO2]: the ring that streams the weights, and the values that the
// weights have at each step.
//
// stream() sets the weights that a forward uses, in order; a pass of the ring is then a step or an
// evaluation. The halves of a step are measured at theta +- eps z of each direction. commit() makes
// the step from the measured losses. A pass ended by finish() changes nothing, so a step begun
// after it is the same step again. Directions are drawn from the run's seed, the step and the
// direction's number, which is the purpose of its noise.
//
// Mode log (logged_values.h): theta is a base, which no step writes, and the log. commit() appends
// to the log, which makes the step. With an arena, consolidate() makes a new base. The ring has
// then read ahead from the old base, so it is dropped and made again. With low-rank noise,
// begin_step(), begin_evaluation() and low_rank() update the factors when needed, and then wait for
// the streams that computed since. begin_step() makes room for the step: if the device has none,
// the ring is made again with fewer resident weights.
//
// Mode write_back (host_masters.h): theta is the weights in host memory, into which each step is
// written when a weight arrives for the next pass; weights that no pass streams are caught up when
// a pass begins. So host memory is all of one step only between flush() and the next begin_step()
// or begin_evaluation(), and only then does no other thread write to it. With a wire form for the
// link, f32 weights cross as images in that form, rounded to nearest, and never return: the host
// writes each step into the f32 master and then makes the image. So no image crosses before its
// step is known. Resident weights are updated on the device as always. A snapshot is host memory of
// one step, which another thread reads while steps go on: each weight waits to be overwritten until
// it has been read (master_snapshot.h).
//
// Thread safety: as the ring.
// Lifetime:      host memory of the weights, and the arena, outlive the engine.
// Errors:        as in weight_ring.h, logged_values.h, host_masters.h and replay.h; a step that
//                throws was not made, but for a log that could not be synced. InvalidArgument: a
//                call for the other mode. After a failure in a lane, weights that are written
//                belong to different steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/stream/weight_ring.h"
#include "runtime/engine/zo/host_masters.h"
#include "runtime/engine/zo/logged_values.h"

namespace sluiceway {

enum class ZoMode : std::uint8_t { kLog, kWriteBack };

// The base has the options of mode log; its `shape` has seed, noise, groups and directions in both.
struct ZoEngineOptions : LoggedValues::Options {
  explicit ZoEngineOptions(DeviceId device) noexcept : ring(device) {}

  ZoMode mode = ZoMode::kLog;
  WeightRingOptions ring;
  float eps = 1e-3F;
  // Of mode write_back.
  std::uint64_t step = 0;               // Step of the weights.
  int threads = 1;                      // That write steps in host memory.
  std::optional<WeightForm> wire = {};  // For the link; none: masters cross unchanged.
};

class ZoEngine {
 public:
  explicit ZoEngine(const ZoEngineOptions& options);
  ZoEngine(const ZoEngine&) = delete;
  ZoEngine& operator=(const ZoEngine&) = delete;
  ~ZoEngine();

  // Between passes; again when the forward has changed. A use has host memory, which outlives this,
  // or its number in the arena. Without this call, a pass streams nothing.
  void stream(std::vector<StreamedWeight> uses);
  bool streams() const noexcept { return !uses_.empty(); }

  // ---- A pass ----
  // Round k of the pass measures directions[k], and all of them without a list. A process that
  // shares a step with others measures some; commit() takes the gradients of all.
  void begin_step(std::vector<std::uint32_t> directions = {});
  void begin_evaluation();
  const void* acquire(int use, int round, Side side, StreamRef compute);
  void release(int use, int round, StreamRef compute);
  void commit(std::span<const float> g, std::span<const StepRate> rates, bool non_finite = false);
  void finish();  // Allowed without a pass; undoes a step that was not committed.
  bool is_passing() const noexcept { return passing_ != Passing::kNone; }
  std::uint64_t next_step() const;
  StepNoise noise(std::uint32_t direction) const;  // Of a direction in the next step.

  // ---- Mode log, between passes ----
  void rollback(std::uint64_t step);
  void restore(std::uint64_t entries);
  void branch(std::uint64_t step, const std::string& path) const { log().branch(step, path); }
  void sync() { logged("sync").sync(); }
  // If the arena throws, base and steps are unchanged. OutOfMemory from the ring: the base is the
  // new one. After either, the next pass makes the ring again.
  void consolidate(const ZoArena::Consolidation& how);
  const ScalarLog& log() const { return logged("log").log(); }
  // Turn the base into theta; for one group, use that group's scales.
  const ZoUpdates& updates() const { return *logged("updates").updates(); }
  std::vector<double> gammas() const;
  // Makes theta and its neighbours outside of the ring, on `compute`.
  LowRankUpdates& low_rank(StreamRef compute);

  // ---- Mode write_back, between passes ----
  void hold(std::vector<StreamedWeight> weights);  // Once, with all trained weights, each once.
  void flush();                      // Brings host memory to next_step(), which nobody reads then.
  void restart(std::uint64_t step);  // Other code has set the weights to this step.
  // Snapshot of next_step(). Fails when a lane throws, and on restart().
  std::shared_ptr<MasterSnapshot> begin_snapshot();
  void drop_snapshot() noexcept;  // Makes the reader of the last one throw.
  // Blocks until the last snapshot was read, or for `most`; returns whether it was. Needs no
  // further pass.
  bool finish_snapshot(std::optional<std::chrono::milliseconds> most = {});

  // ---- Numbers ----
  WeightRing& ring();
  // Use of the ring; 0 while the ring has to be made again.
  EngineUse take_use() { return ring_ ? ring_->take_use() : EngineUse{}; }
  std::uint64_t take_disk_read() noexcept { return ring_ ? ring_->take_disk_read() : 0; }
  // Shared by all its rings.
  const std::shared_ptr<Trace>& trace() const noexcept { return ring_options_.lanes.trace; }

 private:
  enum class Passing : std::uint8_t { kNone, kStep, kEvaluation };
  using IsRead = std::function<bool(std::chrono::milliseconds most)>;

  LoggedValues& logged(const char* function) const;
  HostMasters& masters(const char* function) const;
  void check_between(const char* function) const;

  void need_ring();
  void begin(Passing what, std::span<const std::uint32_t> directions = {});
  std::shared_ptr<ZoPass> work() const;  // At theta of next_step(), without noise.

  void make_room();                   // For factors of the step that begins.
  bool give_way(std::uint64_t step);  // Frees resident weights for that; false: no change.
  void note(StreamRef compute);
  void catch_up();  // Adds the log's steps to factors; ends an interrupted pass.

  std::vector<std::size_t> masters_of(std::vector<StreamedWeight>& uses) const;
  ZoUpdates written_step(std::span<const float> g, std::span<const StepRate> rates) const;
  void catch_up_unstreamed();
  void land_snapshot();
  bool wait_until(const IsRead& is_read, std::optional<std::chrono::milliseconds> most = {});
  void check_lanes();
  void fail_snapshot(std::exception_ptr error) noexcept;

  WeightRingOptions ring_options_;
  LogShape shape_;
  float eps_;
  std::unique_ptr<LoggedValues> logged_;  // In mode log,
  std::unique_ptr<HostMasters> masters_;  // or in mode write_back.
  std::optional<MasterImages> images_;    // Only with a wire form for the link.
  std::vector<bool> streamed_;            // By master.
  std::vector<StreamedWeight> uses_;      // As in the ring.
  std::vector<StreamRef> computes_;  // Used since factors were written; the last one at the end.
  std::optional<WeightRing> ring_;
  Passing passing_ = Passing::kNone;
};

}  // namespace sluiceway
