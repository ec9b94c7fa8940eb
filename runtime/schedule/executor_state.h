// How payloads move: the half of the executor that streams call back into.
//
// Each layer has a place for one payload (Item). An item is parked (before a hold or a gate),
// ready (in its lane's heap) or running (on its lane's stream). Whoever changes that under the
// mutex calls dispatch() before letting go of it, so a free lane never sleeps on a ready payload.
//
// A stream may run a task inside enqueue(), and its completion with it. So the mutex is let go
// around enqueue(), and a thread that hands out a lane's payloads marks the lane `dispatching`:
// whoever frees the lane meanwhile leaves the next payload to that thread, and recursion goes no
// deeper than there are lanes.
//
// Functions that take a Lock expect the mutex to be held.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/schedule/executor.h"
#include "runtime/schedule/step_plan.h"

namespace sluiceway {

struct Executor::State : std::enable_shared_from_this<Executor::State> {
  using Lock = std::unique_lock<std::mutex>;
  enum class Place { kParked, kReady, kRunning };

  struct Item {
    Payload payload;
    std::uint64_t step = 0;
    std::uint64_t arrival = 0;
    Rank rank;
    std::size_t lane = 0;
    Place place = Place::kParked;
    bool recalled = false;
    std::array<double, kLaneCount> seconds{};
  };
  using Items = std::vector<std::unique_ptr<Item>>;

  struct LaneState {
    std::vector<Item*> ready;  // A heap, the lowest rank on top; holds every layer without growing.
    Item* running = nullptr;
    bool dispatching = false;
    double began_s = 0;  // When `running` was handed out.
    double busy_s = 0;   // Before that.
  };

  explicit State(Config given);

  // Into the lanes as far as it can go: to a hold or gate, a ready heap, or out (into `gone`).
  void enter(Lock& lock, Item* item, Items& gone);
  void open_gates(Lock& lock, Items& gone);
  void dispatch(Lock& lock);
  void complete(std::size_t lane, Item* item, const Completion& completion) noexcept;

  // Frees the layer's place. The item must be in no heap and not running.
  std::unique_ptr<Item> take_out(Lock& lock, Item* item);
  void drop_from_heap(Lock& lock, Item* item);

  // Keeps the first error and takes out every payload that is not running.
  void fail(Lock& lock, std::exception_ptr named, Items& gone);

  // Destroys what payloads captured, without the mutex, before the executor counts as idle.
  void destroy(Lock& lock, Items& gone);

  bool released(const Item& item) const noexcept { return item.step < step; }
  bool must_park(const Item& item) const noexcept;
  bool held_back(const Item& item) const noexcept;  // Cannot finish before release().
  bool passed_hold(const Item& item) const noexcept;
  bool idle() const noexcept;  // No stream has work of ours, no thread of ours is at a stream.
  double apply_busy_s(double now_s) const noexcept;
  void throw_if_failed(Lock& lock);  // After the other lanes finished.
  Item* item_at(int layer) const noexcept { return items[static_cast<std::size_t>(layer)].get(); }
  void check_layer(const char* function, int layer) const;

  const Config config;
  mutable std::mutex mutex;
  std::condition_variable changed;  // A layer became free, a payload parked, or idle() rose.

  StepPlan plan;
  std::uint64_t step = 0;      // Calls of release().
  std::uint64_t arrivals = 0;  // Calls of submit().
  Items items;                 // By layer; empty where the layer has no payload.
  std::vector<Item*> parked;
  std::array<LaneState, kLaneCount> lanes;
  // Payloads that have not left d2h, of released steps and of the current one: barrier's gate.
  std::size_t old_before_host = 0;
  std::size_t new_before_host = 0;
  std::size_t destroying = 0;
  bool closing = false;
  std::exception_ptr error;
  std::vector<std::array<double, kLaneCount>> last_seconds;
  LaneUse use;

 private:
  static bool goes_later(const Item* a, const Item* b) noexcept;  // Puts the lowest rank on top.
  void start_next(std::size_t lane, Lock& lock);
  void advance(Lock& lock, Item* item, Items& gone);
  void leave_d2h(const Item& item) noexcept;
};

double steady_s() noexcept;  // Seconds of the steady clock.

}  // namespace sluiceway
