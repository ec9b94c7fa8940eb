// Carries payloads through lanes; each lane is a stream with its own order and depth.
//
// A payload (hop.h) is opaque: a key, a deadline and a list of hops. There is no scheduling thread:
// completions and submissions move payloads under one mutex.
//
// A payload may be held before one hop: until release() is called for the whole step (the global
// norm is known, or the step is committed), or until recall() removes it. A payload submitted after
// release() belongs to the next step, and queues after payloads of earlier steps.
//
// Invariants, which the tests name:
//   I1  A payload's hops start in their order, each once. The next one starts when the previous one
//       has finished, or, if both streams are on one device that waits by itself, after its event.
//       The first starts after the event Payload::after.
//   I2  A lane has at most `depth` hops in flight, and the ready payload of the lowest rank
//       (step_plan.h) goes next.
//   I3  No hop at or after a hold starts before release(). Under kBarrier, also no hop in
//       gather_before or a later lane starts before every payload of the step has left the lanes
//       before that.
//   I4  After recall() has returned, no hop of the payloads that it removed runs or will run.
//   I5  Objects that a hop captured are destroyed before the hop counts as finished. Objects that a
//       dropped payload captured are destroyed before the call that dropped it, or that reports its
//       error, returns.
//   I6  The first error is kept. No stream receives work after it; hops in flight, including one
//       waiting for an event of its device, finish, and only then a call throws the error.
//   I7  A free lane never leaves a ready payload waiting, no wait is forgotten, and streams that
//       run a task inside enqueue() recurse no deeper than there are lanes.
//   I8  wait() returns when the lanes contain no payload of the key except held ones (kBarrier: of
//       any key). acquire() returns earlier: when the last hop of each of these payloads has been
//       given to a stream of a device, or has finished. The reader's stream then waits for recorded
//       events of these hops. No stream of a device ever waits for a payload that a thread still
//       has to hand over (stream.h, D1): the thread that calls acquire() waits for that.
//   I9  A wait that Config::check_interrupt ends has changed nothing, and can be repeated.
//   I10 After give_up_after() no call waits forever: a lane in which nothing finishes fails the
//       executor, and no stream receives work any more.
//
// Thread safety: every call from any thread, but not from a payload's own task.
// Lifetime:      the streams outlive the executor; ~Executor() recalls held payloads and drains,
//                however long that takes.
// Errors:        a hop that fails makes the executor fail: every later call throws the same error,
//                which names lane and payload (last_seconds() and take_use() still work). Nothing
//                is retried.
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

// The time in seconds that each lane's hops took since the last reset, and their number.
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
    std::uint64_t transition = 0;  // kPaper: deadlines below it go last come, first served.
    Trace* trace = nullptr;        // Not owned; null: no recording.
    // A thread that waits in a call calls this every 50 ms; an exception from it ends the wait.
    std::function<void()> check_interrupt = {};
  };

  // Throws InvalidArgument for no lanes, or a lane without stream or depth.
  explicit Executor(Config config);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();

  // The payload is ready for its first hop. Throws InvalidArgument if the key does not exist, a hop
  // does not have exactly one lane and one task, or the lanes do not ascend.
  void submit(Payload payload);

  // Ends the step's submissions: payloads that are held now, or reach their hold later, go on.
  void release();

  // Removes every payload of the key that has not passed its hold: waits while a task of one runs,
  // then drops the others. Returns true if there was one. Throws InvalidArgument if the key has
  // payloads and each has passed its hold or has none.
  bool recall(int key);

  // Blocks as I8 says. Returns the stall: the seconds that it blocked while the device lane was
  // idle.
  double wait(int key);

  // Like wait(), for work that `reader` receives from now on (I8).
  void acquire(int key, Stream& reader);

  void drain();               // Waits for all keys; release() held payloads first.
  bool busy(int key) const;   // True if the lanes contain a payload of the key, held or not.
  bool moves(int key) const;  // True if wait() would block now.
  // True if other calls throw; set before the failed hop is destroyed.
  bool has_failed() const noexcept;
  void set_transition(std::uint64_t deadline);

  // From now on, a waiting thread abandons a lane that has been busy for `patience` (or longer, if
  // earlier hops took longer) without finishing a hop: the executor fails with Timeout. The time
  // between two checks of a wait counts for at most 100 ms, so that time in which this process was
  // suspended hardly counts. The lane's work goes on, and needs the executor, the streams and
  // everything that hops have captured until idle(). Nothing: waits are unlimited again.
  void give_up_after(std::optional<std::chrono::duration<double>> patience);
  bool idle() const;  // No stream is running work of this executor.

  // Returns the seconds by lane that this key's payloads took in its last finished step.
  std::vector<double> last_seconds(int key) const;
  LaneUse take_use();  // Reads and resets.

 private:
  struct State;
  std::shared_ptr<State> state_;  // Completions share it.
};

}  // namespace sluiceway
