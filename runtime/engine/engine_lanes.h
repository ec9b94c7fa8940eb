// The equipment of an engine: budget, trace, both links, a stream for each lane, and the executor.
//
// The engine chooses the lanes: a list of names, each on a stream of the device or on a thread of
// the host. Each executor key is a weight of the engine.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      call stop() before destroying anything that payloads refer to. ~EngineLanes()
//                stops too.
// Errors:        OutOfMemory, with both byte counts, if the model alone exceeds the budget. The
//                next call of the executor rethrows an exception from a lane.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/link_copy.h"
#include "runtime/device/stream.h"
#include "runtime/engine/stall_clock.h"
#include "runtime/memory/budget.h"
#include "runtime/schedule/cost_model.h"
#include "runtime/schedule/executor.h"
#include "runtime/trace/trace.h"

namespace sluiceway {

struct LaneSpec {
  enum class Runs : std::uint8_t { kOnDevice, kOnHost };
  std::string name;
  Runs runs = Runs::kOnHost;
  int depth = 1;           // Hops in flight.
  int cpu = -1;            // Processor for its thread; -1 leaves it free.
  bool is_urgent = false;  // The next forward waits for it, so it precedes other device work.
  // The link that its hops cross. If that link is paced, the hops run on a thread of the lane,
  // which sleeps for the duration of a copy: a device stream never sleeps (stream.h, D1).
  std::optional<LinkDirection> crosses = std::nullopt;
  int threads = 1;  // On a host lane: hops that run in parallel, at most `depth`.
};

// Counts since the last take_use(); peaks since the start.
struct EngineUse {
  std::uint64_t d2h_bytes = 0, h2d_bytes = 0;
  // Seconds in which the device had nothing to run because a weight's update was late: a forward
  // waited, and the device's lane was idle. On the host device, the thread waited. On a CUDA
  // device, the computing stream stood still, on its own or behind a waiting thread; the next
  // take_use() counts what the stream has not reached yet (stall_clock.h).
  double stall_seconds = 0;
  std::vector<double> lane_seconds;                      // Busy.
  std::array<std::uint64_t, kTierCount> used{}, peak{};  // By tier.
};

class EngineLanes {
 public:
  struct Options {
    explicit Options(DeviceId where) noexcept : device(where) {}

    DeviceId device;
    LinkCopy::Config d2h, h2d;
    // Whose links to share, only while the lanes are made; null: own links of this pace.
    const EngineLanes* links_of = nullptr;
    Budget::Limits limits{};
    std::optional<Budget> budget = {};  // Shared with other users of it; else owned.
    std::shared_ptr<Trace> trace = {};  // Shared with earlier or later lanes; else owned.
    std::uint64_t resident_bytes = 0;   // Model bytes on the device before the engine.
    Order order = Order::kEdf;
    std::function<void()> check_interrupt = {};  // See Executor::Config.
  };

  EngineLanes(const Options& options, const std::vector<LaneSpec>& lanes, const LanePlan& plan,
              int key_count);
  EngineLanes(const EngineLanes&) = delete;
  EngineLanes& operator=(const EngineLanes&) = delete;
  ~EngineLanes() = default;

  // Options of further lanes that use the links, budget and trace of these.
  Options beside() const;

  DeviceId device() const noexcept { return device_; }
  const LanePlan& plan() const noexcept { return plan_; }
  Budget& budget() noexcept { return budget_; }
  Trace& trace() noexcept { return *trace_; }
  const std::shared_ptr<Trace>& shared_trace() const noexcept { return trace_; }
  Trace::Row device_row() const noexcept { return device_row_; }
  LinkCopy& d2h() noexcept { return *d2h_; }
  LinkCopy& h2d() noexcept { return *h2d_; }
  Executor& executor() noexcept { return *executor_; }
  const Executor& executor() const noexcept { return *executor_; }

  Stream& stream(LaneId lane) { return streams_.at(static_cast<std::size_t>(lane)); }

  // Returns our wrapper of the framework's stream `compute`, which must outlive the lanes. May be
  // called from any thread; the reference stays valid as long as the lanes.
  Stream& compute(StreamRef compute);

  // Blocks until every payload of this key that is not held has finished.
  void wait(int key);
  // Like wait(), for work enqueued later on `compute`. On a CUDA device the thread waits only until
  // the last hops of the key are enqueued, and the stream waits for these hops.
  void acquire(int key, StreamRef compute);

  void note_device_times(double forward_s, double backward_s);  // Times of the last step.
  bool has_device_times() const noexcept { return forward_s_ + backward_s_ > 0; }
  std::vector<LayerCost> measured_costs() const;  // By key, from the last step of each.

  EngineUse take_use();
  // Recalls held payloads and drains the lanes, so that no payload runs any more. This destroys the
  // executor; afterwards only destruction is allowed.
  void stop() noexcept;

 private:
  DeviceId device_;
  LanePlan plan_;
  Order order_;
  std::function<void()> check_interrupt_;
  int key_count_;
  Budget budget_;
  Budget::Reservation resident_;
  std::shared_ptr<Trace> trace_;
  Trace::Row device_row_;
  std::shared_ptr<LinkCopy> d2h_, h2d_;
  std::optional<StallClock> stall_clock_;  // Only on a CUDA device; tasks of its lane refer to it.
  std::vector<Stream> streams_;
  std::unique_ptr<Executor> executor_;  // Declared after the streams: it drains before they end.
  double forward_s_ = 0, backward_s_ = 0;
  double stall_seconds_ = 0;  // On the host device.
  std::mutex compute_mutex_;  // Guards the two below, because other threads may evaluate.
  std::optional<StreamRef> compute_ref_;  // The framework's stream requested last.
  // Our wrappers of the framework's streams. The framework has only a few and reuses them.
  std::vector<std::pair<StreamRef, std::unique_ptr<Stream>>> borrowed_;
  std::uint64_t counted_d2h_ = 0, counted_h2d_ = 0;
};

}  // namespace sluiceway
