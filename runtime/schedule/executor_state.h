// How payloads move: the half of the executor that streams call back into.
//
// A payload in the lanes is an Item: parked (before a hold or the gate), ready (in its lane's heap)
// or running (the lane's stream has its hop). Code that changes this under the mutex calls
// dispatch() before it unlocks, so a free lane never sleeps on a ready payload.
//
// A stream may run a task inside enqueue(), and its completion too. So the mutex is unlocked around
// enqueue(), and a thread that hands out a lane's payloads marks the lane `dispatching`: a thread
// that frees the lane meanwhile leaves the next payload to it, and recursion goes no deeper than
// there are lanes.
//
// If the next hop's stream is on the same device, the thread that handed out a hop moves the item
// on at once, with an event for the next stream (move_on). The item then has several hops in
// flight; it is removed, parked or moved to another device only when all of them have finished.
// After the last hop, on a device, that thread also records an event: the item counts as sent, and
// a reader that acquires its key waits for that event on the device.
//
// Functions that take a Lock expect the mutex to be held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/device/event.h"
#include "runtime/schedule/executor.h"
#include "runtime/schedule/step_plan.h"

namespace sluiceway {

struct Executor::State : std::enable_shared_from_this<Executor::State> {
  using Lock = std::unique_lock<std::mutex>;
  using Seconds = std::chrono::duration<double>;
  enum class Place { kParked, kReady, kRunning };
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  struct Item;
  using Items = std::list<Item>;  // Moved by splicing: an item keeps its address.

  struct Item {
    explicit Item(Payload given) : payload(std::move(given)), seconds(payload.hops.size()) {}
    std::size_t lane() const noexcept { return static_cast<std::size_t>(payload.hops[hop].lane); }
    bool in_flight() const noexcept { return started != finished || handed_out; }

    Payload payload;
    Items::iterator self;
    std::uint64_t step = 0;
    std::uint64_t arrival = 0;
    Rank rank;
    std::size_t gate = kNone;        // First hop after the gate, or the end; kNone: no gate.
    std::size_t device_hop = kNone;  // Hop in the device lane.
    std::size_t hop = 0;             // Current hop.
    std::size_t started = 0;         // Hops given to their streams.
    std::size_t finished = 0;        // Those of `started` that have finished.
    Place place = Place::kParked;    // Where the current hop is.
    bool handed_out = false;         // A thread of ours will move it on when enqueue() returns.
    bool is_sent = false;            // Its last hop is in a stream, followed by an event.
    bool on_device = false;          // Its hop in the device lane is running.
    std::uint64_t recalled_by = 0;   // Number of the recall() that waits for it; 0: none.
    Event after;                     // The event to wait for if earlier work has not finished.
    std::vector<double> seconds;     // By hop.
  };

  struct LaneState {
    std::vector<Item*> ready;  // A heap, the lowest rank on top; has room for every item.
    int running = 0;
    bool dispatching = false;
    double busy_since_s = 0;  // limit_s() when it became busy, or when its last hop finished.
    double longest_s = 0;     // Longest time of a finished hop.
    Event last_end;           // Recorded after the last hop here of the item sent last.
  };

  struct Key {
    std::size_t payloads = 0;
    std::size_t moving = 0;        // Payloads that are not held back.
    std::size_t unsent = 0;        // Moving payloads that are not sent.
    std::vector<LaneId> ends_in;   // Lanes in which payloads have been sent.
    std::vector<Event> ends;       // The last event of each of these lanes.
    std::uint64_t step = 0;        // Step that `gathered` describes.
    std::vector<double> gathered;  // Seconds by lane of this step's payloads so far.
    std::vector<double> last;      // The same when none was moving any more.
  };

  explicit State(Config given);

  void add(Lock& lock, Item* item);  // Sets rank, gate and counters; the item is in `items`.
  // Moves the item to a hold or the gate, into its lane's heap, or out (into `gone`).
  void enter(Lock& lock, Item* item, Items& gone);
  void open_gates(Lock& lock, Items& gone);
  void dispatch(Lock& lock);
  void complete(Item* item, std::size_t hop, const Completion& completion) noexcept;

  // The item must be in no heap, not parked and not in flight.
  void take_out(Lock& lock, Item* item, Items& gone);
  void stop(Lock& lock, Item* item);  // Takes it out of its heap, or ends its parking.

  // Keeps the first error and removes every payload that is not in flight.
  void fail(Lock& lock, std::exception_ptr named, Items& gone);

  // Waits until done(), which is evaluated whenever `changed` is notified. Rethrows exceptions of
  // check_interrupt, with the mutex held.
  template <class Done>
  void wait_until(Lock& lock, const Done& done) {
    while (!changed.wait_for(lock, kSlice, done)) look_up(lock);
  }
  double limit_s(Lock& lock) const noexcept;  // steady_s() minus missed_s.
  // Items marked by this recall go on.
  void put_back(Lock& lock, std::uint64_t recall, Items& gone);

  // Destroys objects that payloads captured, without the mutex, before the executor counts as idle.
  void destroy(Lock& lock, Items& gone);

  bool released(const Item& item) const noexcept { return item.step < step; }
  bool must_park(const Item& item, std::size_t hop) const noexcept;  // At that hop.
  bool held_back(const Item& item) const noexcept;  // Cannot finish before release().
  bool passed_hold(const Item& item) const noexcept;
  bool idle() const noexcept;  // No stream runs our work, and no thread of ours is calling one.
  double device_busy_s(double now_s) const noexcept;
  void throw_if_failed(Lock& lock);  // Throws after the other lanes have finished.
  Key& key_of(const Item& item) noexcept {
    return keys[static_cast<std::size_t>(item.payload.key)];
  }
  Key& checked_key(const char* function, int key);
  void check_hops(const Payload& payload) const;
  // Reserves one more place in every heap, so that moving an item cannot fail.
  void make_room(Lock& lock);
  // Returns how many payloads wait(key) waits for.
  std::size_t moving_for(const Key& key) const noexcept {
    return plan.forward_waits_for_all() ? moving : key.moving;
  }
  // Returns how many payloads acquire() waits for on the host; the device waits for the others.
  std::size_t unsent_for(const Key& key) const noexcept {
    return plan.forward_waits_for_all() ? unsent : key.unsent;
  }
  std::vector<Event> ends_for(const Key& key) const;
  void count_unsent(Lock& lock);
  // Marks and stops payloads that have not passed their hold; returns one that has, if any.
  const Item* mark_recalled(Lock& lock, int key, std::uint64_t number);
  std::string_view lane_name(const Item& item, std::size_t hop) const noexcept;
  std::string_view hold_name(const Item& item) const noexcept;
  LaneUse no_use() const;

  const Config config;
  mutable std::mutex mutex;
  std::condition_variable changed;  // A payload left or stopped, or idle() became true.

  StepPlan plan;
  std::uint64_t step = 0;      // Calls of release().
  std::uint64_t arrivals = 0;  // Calls of submit().
  std::uint64_t recalls = 0;   // Calls of recall().
  Items items;                 // Payloads in the lanes, in order of arrival.
  std::size_t moving = 0;      // Items that are not held back.
  std::size_t unsent = 0;      // Moving items that are not sent.
  std::vector<Key> keys;
  std::vector<Item*> parked;
  std::vector<LaneState> lanes;
  // Payloads that have not reached the gate, of released steps and of the current one.
  std::size_t old_before_gate = 0;
  std::size_t new_before_gate = 0;
  std::size_t destroying = 0;
  bool closing = false;
  std::exception_ptr error;
  std::optional<Seconds> patience;  // How long a lane may finish nothing.
  double patient_since_s = 0;       // limit_s() when that time started.
  double looked_up_s = 0;           // steady_s() when a wait last checked for a stuck lane.
  double missed_s = 0;              // Seconds between two checks beyond what counts.
  bool given_up = false;            // A lane was abandoned: nobody waits for it.
  LaneUse use;

 private:
  // How long a wait lasts before its thread checks: short for a person, long for a processor.
  static constexpr std::chrono::milliseconds kSlice{50};

  void look_up(Lock& lock);
  // The most that one look adds to limit_s(), however late it comes.
  static constexpr Seconds kCounted{2 * kSlice};

  void count_missed(Lock& lock);
  void give_up_stuck_lane(Lock& lock);
  static bool goes_later(const Item* a, const Item* b) noexcept;  // Puts the lowest rank on top.
  void start_next(std::size_t lane, Lock& lock);
  void hand_over(Item* item, std::size_t hop, const Event& after);
  const Stream& stream_of(const Item& item, std::size_t hop) const noexcept;
  bool may_go_ahead(const Item& item) const noexcept;
  bool ends_on_device(const Item& item) const noexcept;
  void move_on(Lock& lock, Item* item, const std::optional<Event>& reached);
  void note_sent(Lock& lock, Item* item, const Event& end);
  void settle(Lock& lock, Item* item, Items& gone);
  void advance(Lock& lock, Item* item, Items& gone);
  void leave_before_gate(const Item& item) noexcept;
  void note_times(const Item& item);
  void note_device(Item& item) noexcept;

  std::size_t on_device_ = 0;   // Items whose hop in the device lane is running.
  double device_began_s_ = 0;   // When the first of them started.
  double device_before_s_ = 0;  // Busy time before that.
};

double steady_s() noexcept;  // Seconds on the steady clock.

}  // namespace sluiceway
