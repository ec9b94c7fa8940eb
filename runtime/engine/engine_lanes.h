// What an engine works with: budget, trace, both links, a stream for each lane, and the executor.
//
// The lanes are the engine's choice: a list of names, each on a stream of the device or on a thread
// of the host. A key of the executor is a weight of the engine.
//
// Thread safety: one thread at a time calls; the lanes run beside it.
// Lifetime:      stop() before anything that payloads refer to goes. ~EngineLanes() stops too.
// Errors:        OutOfMemory, with both byte counts, if the model alone is beyond the budget. What
//                a lane throws comes out of the next call of the executor.
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
  bool is_urgent = false;  // The next forward waits for it: before other work of the device.
  // The link that its hops cross. Where that is paced, the hops run on the lane's own thread, which
  // sleeps as long as a copy takes: a stream of a device never does (stream.h, D1).
  std::optional<LinkDirection> crosses = std::nullopt;
  int threads = 1;  // Of a lane on the host: so many hops run beside each other, `depth` at most.
};

// Counts since the last take_use(), but for peaks, which are since the start.
struct EngineUse {
  std::uint64_t d2h_bytes = 0, h2d_bytes = 0;
  // The device had nothing to run because a weight's update was late: a forward waited, and the
  // device's lane was idle. On the host device the thread waited. On a CUDA device it is the
  // computing stream that stood still, behind a thread that waited or by itself, and what it has
  // not come to yet is in a later look (stall_clock.h).
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
    Budget::Limits limits{};
    std::optional<Budget> budget = {};  // Shared with who else reserves in it; else their own.
    std::shared_ptr<Trace> trace = {};  // Shared with lanes before or after them; else their own.
    std::uint64_t resident_bytes = 0;   // Of the model, on the device before the engine comes.
    Order order = Order::kEdf;
    std::function<void()> check_interrupt = {};  // Executor::Config's.
  };

  EngineLanes(const Options& options, const std::vector<LaneSpec>& lanes, const LanePlan& plan,
              int key_count);
  EngineLanes(const EngineLanes&) = delete;
  EngineLanes& operator=(const EngineLanes&) = delete;
  ~EngineLanes() = default;

  DeviceId device() const noexcept { return device_; }
  const LanePlan& plan() const noexcept { return plan_; }
  Budget& budget() noexcept { return budget_; }
  Trace& trace() noexcept { return *trace_; }
  Trace::Row device_row() const noexcept { return device_row_; }
  LinkCopy& d2h() noexcept { return d2h_; }
  LinkCopy& h2d() noexcept { return h2d_; }
  Executor& executor() noexcept { return *executor_; }
  const Executor& executor() const noexcept { return *executor_; }

  Stream& stream(LaneId lane) { return streams_.at(static_cast<std::size_t>(lane)); }

  // The framework's stream that `compute` refers to, which outlives the lanes. Any thread; the
  // reference stays valid as long as the lanes.
  Stream& compute(StreamRef compute);

  // Blocks until every payload of this key that is not held is through.
  void wait(int key);
  // As wait() for the work on `compute` that is enqueued later. On a CUDA device the thread waits
  // until the last hops of the key have been enqueued, and the stream waits for these.
  void acquire(int key, StreamRef compute);

  void note_device_times(double forward_s, double backward_s);  // Of the last step.
  bool has_device_times() const noexcept { return forward_s_ + backward_s_ > 0; }
  std::vector<LayerCost> measured_costs() const;  // By key, from its last step.

  EngineUse take_use();
  // Recalls what is held and drains the lanes: no payload runs any more. The executor is gone then,
  // and nothing but destruction may follow.
  void stop() noexcept;

 private:
  DeviceId device_;
  LanePlan plan_;
  int key_count_;
  Budget budget_;
  Budget::Reservation resident_;
  std::shared_ptr<Trace> trace_;
  Trace::Row device_row_;
  LinkCopy d2h_, h2d_;
  std::optional<StallClock> stall_clock_;  // Of a CUDA device; tasks of its lane refer to it.
  std::vector<Stream> streams_;
  std::unique_ptr<Executor> executor_;  // After the streams: it drains before they end.
  double forward_s_ = 0, backward_s_ = 0;
  double stall_seconds_ = 0;              // Of the host device.
  std::mutex compute_mutex_;              // Of the two below: others may evaluate meanwhile.
  std::optional<StreamRef> compute_ref_;  // The framework's stream that was last asked for.
  // Ours over each of the framework's. It has a few, and uses them again.
  std::vector<std::pair<StreamRef, std::unique_ptr<Stream>>> borrowed_;
  std::uint64_t counted_d2h_ = 0, counted_h2d_ = 0;
};

}  // namespace sluiceway
