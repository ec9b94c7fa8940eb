// Carries payloads through the lanes: d2h, host, h2d, apply, each a stream with its own order.
//
// A payload is opaque: a layer number, a name and one task a lane. It is in exactly one lane at a
// time; a lane runs one payload at a time and picks the next by the step plan's order. There is
// no scheduling thread: completions and submissions move payloads under one mutex.
//
// A payload may be held before one lane: until release() for the whole step (the global norm is
// known, or the step is committed), or until recall() takes it out. A payload submitted after
// release() belongs to the next step, and goes behind those of the steps before it.
//
// Thread safety: every call from any thread, but not from a payload's own task.
// Lifetime:      the streams outlive the executor; ~Executor() recalls what is held and drains.
// Errors:        a task that throws fails the executor: payloads not yet started are dropped, those
//                in a lane finish it, then every later call throws the same error, with lane and
//                payload named (last_seconds() and take_use() still answer). Nothing is retried.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/stream.h"
#include "runtime/schedule/lane.h"

namespace sluiceway {

class Trace;

struct Payload {
  int layer = 0;                                  // Index in forward order: the deadline.
  std::string name;                               // For errors and the trace.
  std::array<Stream::Task, kLaneCount> tasks;     // An empty task: the lane is passed at once.
  std::array<std::uint64_t, kLaneCount> bytes{};  // For the trace.
  std::optional<Lane> hold_before;                // Waits there for release().
};

// Busy time of each lane since the last reset, in seconds; and how often each was used.
struct LaneUse {
  std::array<double, kLaneCount> seconds{};
  std::array<std::uint64_t, kLaneCount> payloads{};
};

class Executor {
 public:
  struct Config {
    std::array<Stream*, kLaneCount> streams{};
    int layer_count = 0;
    Order order = Order::kEdf;
    int transition_layer = 0;  // kPaper: layers below it go last come first served.
    Trace* trace = nullptr;    // Not owned; null: nothing is recorded.
    std::array<int, kLaneCount> trace_rows{};
  };

  explicit Executor(Config config);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  // The payload is ready for its first lane. InvalidArgument: that layer still has a payload in
  // the lanes, or the layer does not exist.
  void submit(Payload payload);

  // Ends the step's submissions: payloads that are held, now or when they reach their hold, go on.
  // Under kBarrier host work starts when all of them are on the host.
  void release();

  // Takes the layer's payload out: waits while a task of it runs, then drops the rest. True if a
  // payload was there. InvalidArgument: it has passed its hold, or has none.
  bool recall(int layer);

  // Blocks until the layer has no payload in the lanes (kBarrier: until no layer has). Returns the
  // seconds it blocked during which the apply lane was idle: the stall.
  double wait(int layer);

  void drain();  // wait() for all layers; payloads that are held must be released first.
  bool busy(int layer) const;  // Whether the layer has a payload in the lanes.
  void set_transition_layer(int layer);

  // Seconds each hop of this layer's last finished payload took, for the cost model.
  std::array<double, kLaneCount> last_seconds(int layer) const;
  LaneUse take_use();  // Reads and resets.

 private:
  struct State;
  std::shared_ptr<State> state_;  // Completions hold it too.
};

}  // namespace sluiceway
