// Carries payloads through lanes, each a stream with its own order and depth.
//
// A payload (hop.h) is opaque: a key, a deadline and a list of hops. There is no scheduling thread:
// completions and submissions move payloads under one mutex.
//
// A payload may be held before one hop: until release() for the whole step (the global norm is
// known, or the step is committed), or until recall() takes it out. A payload submitted after
// release() belongs to the next step, and goes behind those of the steps before it.
//
// Invariants, which the tests name:
//   I1  A payload's hops start in their order, each once; the next when the one before has
//       finished, or, where both streams are of one device that waits by itself, behind its event.
//       The first starts behind Payload::after.
//   I2  A lane has at most `depth` hops in flight, and the ready payload of the lowest rank
//       (step_plan.h) goes next.
//   I3  No hop at or behind a hold starts before release(); under kBarrier, moreover, none in
//       gather_before or a later lane before every payload of the step has left the lanes before.
//   I4  When recall() has returned, no hop of what it took out runs or will run.
//   I5  What a hop captured is destroyed before the hop counts as finished, and what a dropped
//       payload captured before the call returns that dropped it or reports its error.
//   I6  The first error is kept. Nothing is handed to a stream after it; what is in flight, a hop
//       behind an event of its device included, finishes, and only then a call throws it.
//   I7  A free lane never leaves a ready payload waiting, no wait is forgotten, and streams that
//       run a task inside enqueue() recurse no deeper than there are lanes.
//   I8  wait() returns when the key has no payload in the lanes but held ones (kBarrier: when no
//       key has). acquire() returns earlier: when the last hop of each of these payloads has been
//       given to a stream of a device, or has finished. The reader's stream then waits for recorded
//       events of these hops. No stream of a device ever waits for a payload that a thread still
//       has to hand over (stream.h, D1): the thread that calls acquire() waits for that.
//   I9  A wait that Config::check_interrupt ends has changed nothing, and can be begun again.
//   I10 After give_up_after() no call waits for ever: a lane in which nothing finishes fails the
//       executor, and no stream gets anything any more.
//
// Thread safety: every call from any thread, but not from a payload's own task.
// Lifetime:      the streams outlive the executor; ~Executor() recalls what is held and drains,
//                however long that takes.
// Errors:        a hop that fails fails the executor: every later call throws the same error, with
//                lane and payload named (last_seconds() and take_use() still answer). Nothing is
//                retried.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/device/event.h"
#include "runtime/schedule/hop.h"
#include "runtime/schedule/lane.h"

namespace sluiceway {

class Trace;

// Time that each lane's hops took since the last reset, in seconds; and how many there were.
struct LaneUse {
  std::vector<double> seconds;
  std::vector<std::uint64_t> payloads;
};

class Executor {
 public:
  struct Config {
    std::vector<LaneConfig> lanes;  // In the order in which payloads pass them.
    LanePlan plan;
    int key_count = 0;
    Order order = Order::kEdf;
    std::uint64_t transition = 0;  // kPaper: deadlines below it go last come first served.
    Trace* trace = nullptr;        // Not owned; null: nothing is recorded.
    // Asked every 50 ms by a thread that waits in a call: what it throws ends the wait.
    std::function<void()> check_interrupt = {};
  };

  explicit Executor(Config config);  // InvalidArgument: a lane without stream or depth, or no lane.
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  // The payload is ready for its first hop. InvalidArgument: the key does not exist, a hop has no
  // lane or not exactly one task, or the lanes do not ascend.
  void submit(Payload payload);

  // Ends the step's submissions: payloads that are held, now or when they reach their hold, go on.
  void release();

  // Takes out every payload of the key that has not passed its hold: waits while a task of one
  // runs, then drops the rest. True if one was there. InvalidArgument: the key has payloads, and
  // each has passed its hold or has none.
  bool recall(int key);

  // Blocks as I8 says. Returns the seconds it blocked during which the device lane was idle: the
  // stall.
  double wait(int key);

  // As wait(), for work that `reader` is given from now on (I8).
  void acquire(int key, Stream& reader);

  void drain();               // wait() for all keys; payloads that are held must be released first.
  bool busy(int key) const;   // Whether the key has a payload in the lanes, held or not.
  bool moves(int key) const;  // Whether wait() would block now.
  bool has_failed() const noexcept;  // Whether other calls throw; known before what failed goes.
  void set_transition(std::uint64_t deadline);

  // From now on whoever waits gives a lane up that has been busy for `patience` without finishing a
  // hop, or for longer where its hops have taken longer before: the executor fails with Timeout.
  // Each look of a wait counts for at most 100 ms, so the time in which this process was suspended
  // hardly counts.
  // What the lane runs goes on, and needs the executor, the streams and all that hops have captured
  // until idle(). Nothing: waits have no end again.
  void give_up_after(std::optional<std::chrono::duration<double>> patience);
  bool idle() const;  // No stream has work of ours.

  // Seconds by lane that the hops of this key's payloads took in its last finished step.
  std::vector<double> last_seconds(int key) const;
  LaneUse take_use();  // Reads and resets.

 private:
  struct State;
  std::shared_ptr<State> state_;  // Completions hold it too.
};

}  // namespace sluiceway
