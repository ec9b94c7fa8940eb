// How payloads move: the half of the executor that streams call back into.
//
// A payload in the lanes is an Item: parked (before a hold or the gate), ready (in its lane's heap)
// or running (its hop is at the lane's stream). Whoever changes that under the mutex calls
// dispatch() before letting go of it, so a free lane never sleeps on a ready payload.
//
// A stream may run a task inside enqueue(), and its completion with it. So the mutex is let go
// around enqueue(), and a thread that hands out a lane's payloads marks the lane `dispatching`:
// whoever frees the lane meanwhile leaves the next payload to that thread, and recursion goes no
// deeper than there are lanes.
//
// Where the next hop's stream is of the same device, the thread that handed out a hop moves the
// item on at once, with an event for the next stream (move_on). The item then has several hops in
// flight; it is taken out, parked or moved to another device only when all of them have finished.
// Behind the last hop, on a device, that thread records an event too: the item counts as sent, and
// whoever acquires its key waits for that event on the device.
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
  using Items = std::list<Item>;  // Moved by splicing: an item stays where it is in memory.

  struct Item {
    explicit Item(Payload given) : payload(std::move(given)), seconds(payload.hops.size()) {}
    std::size_t lane() const noexcept { return static_cast<std::size_t>(payload.hops[hop].lane); }
    bool in_flight() const noexcept { return started != finished || handed_out; }

    Payload payload;
    Items::iterator self;
    std::uint64_t step = 0;
    std::uint64_t arrival = 0;
    Rank rank;
    std::size_t gate = kNone;        // Its first hop behind the gate, or the end; kNone: no gate.
    std::size_t device_hop = kNone;  // Its hop in the device lane.
    std::size_t hop = 0;             // The current one.
    std::size_t started = 0;         // Hops given to their streams,
    std::size_t finished = 0;        // and those of them that have finished.
    Place place = Place::kParked;    // Of the current hop.
    bool handed_out = false;         // A thread of ours will move it on when enqueue() returns.
    bool is_sent = false;            // Its last hop is in a stream, with an event behind it.
    bool on_device = false;          // Its hop in the device lane is being worked on.
    std::uint64_t recalled_by = 0;   // Number of the recall() that waits for it; 0: none.
    Event after;                     // Where what comes before has not finished: what to wait for.
    std::vector<double> seconds;     // By hop.
  };

  struct LaneState {
    std::vector<Item*> ready;  // A heap, the lowest rank on top; has room for every item.
    int running = 0;
    bool dispatching = false;
    double busy_since_s = 0;  // limit_s() when it got its first hop, or when its last one finished.
    double longest_s = 0;     // Of the hops that finished.
    Event last_end;           // Behind the last hop here of the item that was sent last.
  };

  struct Key {
    std::size_t payloads = 0;
    std::size_t moving = 0;        // Of `payloads`: not held back.
    std::size_t unsent = 0;        // Of `moving`: not sent.
    std::vector<LaneId> ends_in;   // Lanes in which payloads of `payloads` have been sent,
    std::vector<Event> ends;       // and what the last of each lane ends with.
    std::uint64_t step = 0;        // Of `gathered`.
    std::vector<double> gathered;  // Seconds by lane of the payloads of `step` so far,
    std::vector<double> last;      // and when none was moving.
  };

  explicit State(Config given);

  void add(Lock& lock, Item* item);  // Rank, gate and counters; the item is in `items`.
  // To a hold or the gate, into its lane's heap, or out (into `gone`).
  void enter(Lock& lock, Item* item, Items& gone);
  void open_gates(Lock& lock, Items& gone);
  void dispatch(Lock& lock);
  void complete(Item* item, std::size_t hop, const Completion& completion) noexcept;

  // The item must be in no heap, not parked and not in flight.
  void take_out(Lock& lock, Item* item, Items& gone);
  void stop(Lock& lock, Item* item);  // Out of its heap, or no longer parked.

  // Keeps the first error and takes out every payload that is not in flight.
  void fail(Lock& lock, std::exception_ptr named, Items& gone);

  // Waits until done(), which is asked when `changed` is notified. Throws what check_interrupt
  // does, with the mutex held.
  template <class Done>
  void wait_until(Lock& lock, const Done& done) {
    while (!changed.wait_for(lock, kSlice, done)) look_up(lock);
  }
  double limit_s(Lock& lock) const noexcept;  // steady_s() without what waits have missed.
  void put_back(Lock& lock, std::uint64_t recall, Items& gone);  // What it marked goes on.

  // Destroys what payloads captured, without the mutex, before the executor counts as idle.
  void destroy(Lock& lock, Items& gone);

  bool released(const Item& item) const noexcept { return item.step < step; }
  bool must_park(const Item& item, std::size_t hop) const noexcept;  // At that hop.
  bool held_back(const Item& item) const noexcept;  // Cannot finish before release().
  bool passed_hold(const Item& item) const noexcept;
  bool idle() const noexcept;  // No stream has work of ours, no thread of ours is at a stream.
  double device_busy_s(double now_s) const noexcept;
  void throw_if_failed(Lock& lock);  // After the other lanes finished.
  Key& key_of(const Item& item) noexcept {
    return keys[static_cast<std::size_t>(item.payload.key)];
  }
  Key& checked_key(const char* function, int key);
  void check_hops(const Payload& payload) const;
  void make_room(Lock& lock);  // For one more item in every heap, so that moving one cannot fail.
  // Payloads that a wait for `key` waits for.
  std::size_t moving_for(const Key& key) const noexcept {
    return plan.forward_waits_for_all() ? moving : key.moving;
  }
  // Payloads that acquire() waits for on the host, and what the device waits for behind it.
  std::size_t unsent_for(const Key& key) const noexcept {
    return plan.forward_waits_for_all() ? unsent : key.unsent;
  }
  std::vector<Event> ends_for(const Key& key) const;
  void count_unsent(Lock& lock);
  // Marks and stops what has not passed its hold; returns one that has, if there is any.
  const Item* mark_recalled(Lock& lock, int key, std::uint64_t number);
  std::string_view lane_name(const Item& item, std::size_t hop) const noexcept;
  std::string_view hold_name(const Item& item) const noexcept;
  LaneUse no_use() const;

  const Config config;
  mutable std::mutex mutex;
  std::condition_variable changed;  // A payload left or stopped, or idle() rose.

  StepPlan plan;
  std::uint64_t step = 0;      // Calls of release().
  std::uint64_t arrivals = 0;  // Calls of submit().
  std::uint64_t recalls = 0;   // Calls of recall().
  Items items;                 // In the lanes, in order of arrival.
  std::size_t moving = 0;      // Of `items`: not held back.
  std::size_t unsent = 0;      // Of `moving`: not sent.
  std::vector<Key> keys;
  std::vector<Item*> parked;
  std::vector<LaneState> lanes;
  // Payloads that have not come to the gate, of released steps and of the current one.
  std::size_t old_before_gate = 0;
  std::size_t new_before_gate = 0;
  std::size_t destroying = 0;
  bool closing = false;
  std::exception_ptr error;
  std::optional<Seconds> patience;  // With a lane in which nothing finishes,
  double patient_since_s = 0;       // which counts from here, in limit_s().
  double looked_up_s = 0;           // steady_s() when a wait last looked for such a lane,
  double missed_s = 0;              // and the seconds between two looks that do not count.
  bool given_up = false;            // A lane: nobody waits for it.
  LaneUse use;

 private:
  // How long a wait goes on before its thread looks up: short for a person, long for a processor.
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

  std::size_t on_device_ = 0;   // Items whose hop in the device lane is being worked on.
  double device_began_s_ = 0;   // When the first of them was.
  double device_before_s_ = 0;  // Busy time before that.
};

double steady_s() noexcept;  // Seconds of the steady clock.

}  // namespace sluiceway
