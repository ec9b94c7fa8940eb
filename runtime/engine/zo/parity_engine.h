// Zeroth-order training of weights in host memory into which each step is written [MeZO, ZO2]: the
// ring that streams the weights, and the record of the last steps.
//
// stream() sets the weights that a forward uses, in order; a pass of the ring is then a step or an
// evaluation. commit() makes the step from the measured losses; by then all weights acquired in the
// pass have been read. The step is written into a weight when it arrives for the next pass. So host
// memory is all of one step only between flush() and the next begin_step() or begin_evaluation(),
// and only then does no other thread write to it.
//
// Weights that no pass streams are caught up in host memory when a pass begins.
//
// With a wire form for the link, f32 weights cross as images in that form, rounded to nearest, and
// never return: the host writes each step into the f32 master and then makes the image. So no image
// crosses before its step is known. Resident weights are updated on the device as always.
//
// A snapshot is host memory of one step, which another thread reads while steps go on: each weight
// is readable from its return in the next pass until its return in the pass after.
//
// Directions are drawn as in zo_engine.h.
//
// Thread safety: as the ring.
// Lifetime:      host memory of the weights outlives this.
// Errors:        as in weight_ring.h, host_masters.h and replay.h; a step that throws was not made.
//                After a failure in a lane the weights belong to different steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/engine/zo/host_masters.h"
#include "runtime/engine/zo/scalar_log.h"
#include "runtime/engine/zo/weight_ring.h"

namespace sluiceway {

struct ParityOptions {
  explicit ParityOptions(DeviceId device) noexcept : ring(device) {}

  WeightRingOptions ring;  // The masters' family of noise.
  HostMasters::Options masters;
  std::uint32_t groups = 1, directions = 1;
  float eps = 1e-3F;
  std::optional<WeightForm> wire = {};  // For the link; none: masters cross unchanged.
};

class ParityEngine {
 public:
  explicit ParityEngine(const ParityOptions& options);
  ParityEngine(const ParityEngine&) = delete;
  ParityEngine& operator=(const ParityEngine&) = delete;
  ~ParityEngine();

  void hold(std::vector<ZoWeight> weights);  // Call once, with all trained weights, each once.
  void stream(std::vector<ZoWeight> uses);   // Between passes; again when the forward has changed.
  bool streams() const noexcept { return !uses_.empty(); }

  // ---- A pass ----
  void begin_step();
  void begin_evaluation();
  const void* acquire(int use, int direction, Side side, StreamRef compute);
  void release(int use, int direction, StreamRef compute);
  void commit(std::span<const float> g, std::span<const StepRate> rates);
  void finish();  // Allowed without a pass; undoes a step that was not committed.
  bool is_passing() const noexcept { return passing_ != Passing::kNone; }

  // ---- Between passes ----
  void flush();                      // Brings host memory to next_step(), which nobody reads then.
  void restart(std::uint64_t step);  // Other code has set the weights to this step.
  std::uint64_t next_step() const noexcept { return masters_.next_step(); }
  // Snapshot of next_step(). Fails when a lane throws, and on restart().
  std::shared_ptr<MasterSnapshot> begin_snapshot();
  void drop_snapshot() noexcept;  // Makes the reader of the last one throw.
  // Blocks until the last snapshot was read, or for `most`; returns whether it was. Needs no
  // further pass.
  bool finish_snapshot(std::optional<std::chrono::milliseconds> most = {});

  // ---- Numbers ----
  WeightRing& ring();
  EngineUse take_use() { return ring_ ? ring_->take_use() : EngineUse{}; }
  std::uint64_t take_disk_read() noexcept { return ring_ ? ring_->take_disk_read() : 0; }
  Trace& trace() noexcept { return *ring_options_.lanes.trace; }  // Shared by all its rings.

 private:
  enum class Passing : std::uint8_t { kNone, kStep, kEvaluation };

  using IsRead = std::function<bool(std::chrono::milliseconds most)>;

  void begin();
  void land_snapshot();
  bool wait_until(const IsRead& is_read, std::optional<std::chrono::milliseconds> most = {});
  void check_lanes();
  void fail_snapshot(std::exception_ptr error) noexcept;
  StepNoise noise(std::uint32_t direction) const;

  WeightRingOptions ring_options_;
  std::uint64_t run_seed_;
  std::uint32_t groups_, directions_;
  float eps_;
  HostMasters masters_;
  std::optional<MasterImages> images_;  // Only with a wire form for the link.
  std::vector<ZoWeight> uses_;          // As in the ring.
  std::vector<bool> streamed_;          // By master.
  std::optional<WeightRing> ring_;
  Passing passing_ = Passing::kNone;
};

}  // namespace sluiceway
