#include "runtime/schedule/executor_state.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/schedule/lane_error.h"
#include "runtime/trace/trace.h"

namespace sluiceway {

double steady_s() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Executor::State::State(Config given) : config(std::move(given)) {
  SLUICEWAY_CHECK(config.layer_count >= 0, "Executor: layer_count is ", config.layer_count,
                  ", expected at least 0");
  for (const Lane lane : kLanes) {
    SLUICEWAY_CHECK(config.streams[index(lane)] != nullptr, "Executor: lane ", to_string(lane),
                    " has no stream, expected one for each of ", kLaneCount, " lanes");
  }
  plan.order = config.order;
  plan.transition_layer = config.transition_layer;
  const auto count = static_cast<std::size_t>(config.layer_count);
  items.resize(count);
  last_seconds.resize(count);
  parked.reserve(count);
  for (LaneState& lane : lanes) lane.ready.reserve(count);
}

void Executor::State::check_layer(const char* function, int layer) const {
  SLUICEWAY_CHECK(layer >= 0 && layer < config.layer_count, function, ": layer is ", layer,
                  ", expected 0 to ", config.layer_count - 1);
}

bool Executor::State::must_park(const Item& item) const noexcept {
  const bool at_hold = item.payload.hold_before && index(*item.payload.hold_before) == item.lane;
  if (at_hold && !released(item)) return true;
  if (!plan.gathers_before(kLanes[item.lane])) return false;
  return !released(item) || old_before_host > 0;
}

bool Executor::State::held_back(const Item& item) const noexcept {
  if (released(item)) return false;
  for (std::size_t lane = item.lane; lane < kLaneCount; ++lane) {
    if (item.payload.hold_before && index(*item.payload.hold_before) == lane) return true;
    if (plan.gathers_before(kLanes[lane])) return true;
  }
  return false;
}

bool Executor::State::passed_hold(const Item& item) const noexcept {
  if (!item.payload.hold_before) return true;
  const std::size_t hold = index(*item.payload.hold_before);
  return item.lane > hold || (item.lane == hold && item.place != Place::kParked);
}

bool Executor::State::idle() const noexcept {
  return destroying == 0 && std::all_of(lanes.begin(), lanes.end(), [](const LaneState& lane) {
           return lane.running == nullptr && !lane.dispatching;
         });
}

double Executor::State::apply_busy_s(double now_s) const noexcept {
  const LaneState& lane = lanes[index(Lane::kApply)];
  return lane.busy_s + (lane.running != nullptr ? now_s - lane.began_s : 0);
}

void Executor::State::throw_if_failed(Lock& lock) {
  if (!error) return;
  changed.wait(lock, [&] { return idle(); });
  std::rethrow_exception(error);
}

void Executor::State::leave_d2h(const Item& item) noexcept {
  --(released(item) ? old_before_host : new_before_host);
}

bool Executor::State::goes_later(const Item* a, const Item* b) noexcept {
  return b->rank < a->rank;
}

std::unique_ptr<Executor::State::Item> Executor::State::take_out(Lock&, Item* item) {
  if (item->lane == index(Lane::kD2h)) leave_d2h(*item);
  changed.notify_all();
  return std::move(items[static_cast<std::size_t>(item->payload.layer)]);
}

void Executor::State::enter(Lock& lock, Item* item, Items& gone) {
  for (;;) {
    if (item->lane == kLaneCount) {
      last_seconds[static_cast<std::size_t>(item->payload.layer)] = item->seconds;
      gone.push_back(take_out(lock, item));
      return;
    }
    if (must_park(*item)) {
      item->place = Place::kParked;
      if (closing && !released(*item)) {
        gone.push_back(take_out(lock, item));
      } else {
        parked.push_back(item);
      }
      return;
    }
    if (item->payload.tasks[item->lane]) {
      item->place = Place::kReady;
      std::vector<Item*>& ready = lanes[item->lane].ready;
      ready.push_back(item);
      std::push_heap(ready.begin(), ready.end(), goes_later);
      return;
    }
    if (item->lane == index(Lane::kD2h)) leave_d2h(*item);
    ++item->lane;
  }
}

void Executor::State::open_gates(Lock& lock, Items& gone) {
  // One that enters may leave d2h and open the gate of another: look again until none moves.
  for (bool moved = true; moved;) {
    const auto first_free = std::partition(parked.begin(), parked.end(),
                                           [&](const Item* item) { return must_park(*item); });
    const std::vector<Item*> opened(first_free, parked.end());
    parked.erase(first_free, parked.end());
    for (Item* item : opened) enter(lock, item, gone);
    moved = !opened.empty();
  }
}

void Executor::State::dispatch(Lock& lock) {
  for (std::size_t lane = 0; lane < kLaneCount; ++lane) {
    if (lanes[lane].dispatching) continue;
    lanes[lane].dispatching = true;
    while (!error && lanes[lane].running == nullptr && !lanes[lane].ready.empty()) {
      start_next(lane, lock);
    }
    lanes[lane].dispatching = false;
  }
  if (idle()) changed.notify_all();
}

void Executor::State::start_next(std::size_t lane, Lock& lock) {
  LaneState& state = lanes[lane];
  std::pop_heap(state.ready.begin(), state.ready.end(), goes_later);
  Item* item = state.ready.back();
  state.ready.pop_back();
  item->place = Place::kRunning;
  state.running = item;
  state.began_s = steady_s();
  lock.unlock();
  try {
    config.streams[lane]->enqueue(
        [item, lane](StreamRef stream) { item->payload.tasks[lane](stream); },
        [item, lane, self = shared_from_this()](const Completion& completion) {
          self->complete(lane, item, completion);
        });
  } catch (...) {  // The stream took nothing.
    const double now = now_us();
    complete(lane, item, {.begin_us = now, .end_us = now, .error = std::current_exception()});
  }
  lock.lock();
}

void Executor::State::complete(std::size_t lane, Item* item,
                               const Completion& completion) noexcept {
  item->payload.tasks[lane] = nullptr;  // What it captured goes before the payload moves on.
  if (config.trace != nullptr && config.trace->enabled()) {
    config.trace->add_range(config.trace_rows[lane], item->payload.name, completion.begin_us,
                            completion.end_us,
                            static_cast<std::int64_t>(item->payload.bytes[lane]));
  }
  std::exception_ptr named;
  if (completion.error) named = name_error(completion.error, kLanes[lane], item->payload.name);

  Items gone;
  Lock lock(mutex);
  LaneState& state = lanes[lane];
  state.running = nullptr;
  state.busy_s += steady_s() - state.began_s;
  item->seconds[lane] = (completion.end_us - completion.begin_us) * 1e-6;
  use.seconds[lane] += item->seconds[lane];
  ++use.payloads[lane];
  item->place = Place::kParked;
  if (named && !error) {
    fail(lock, std::move(named), gone);
  } else if (error) {
    gone.push_back(take_out(lock, item));
  } else if (item->recalled) {
    changed.notify_all();  // recall() takes it out.
  } else {
    advance(lock, item, gone);
  }
  dispatch(lock);
  destroy(lock, gone);
}

void Executor::State::advance(Lock& lock, Item* item, Items& gone) {
  const bool left_d2h = item->lane == index(Lane::kD2h);
  if (left_d2h) leave_d2h(*item);
  ++item->lane;
  enter(lock, item, gone);
  if (left_d2h && plan.gathers_before(Lane::kHost)) open_gates(lock, gone);
}

void Executor::State::drop_from_heap(Lock&, Item* item) {
  std::vector<Item*>& ready = lanes[item->lane].ready;
  std::erase(ready, item);
  std::make_heap(ready.begin(), ready.end(), goes_later);
}

void Executor::State::fail(Lock& lock, std::exception_ptr named, Items& gone) {
  error = std::move(named);
  for (LaneState& lane : lanes) lane.ready.clear();
  parked.clear();
  for (const std::unique_ptr<Item>& item : items) {
    if (item && item->place != Place::kRunning) gone.push_back(take_out(lock, item.get()));
  }
}

void Executor::State::destroy(Lock& lock, Items& gone) {
  if (gone.empty()) return;
  ++destroying;
  lock.unlock();
  gone.clear();
  lock.lock();
  --destroying;
  if (idle()) changed.notify_all();
}

}  // namespace sluiceway
