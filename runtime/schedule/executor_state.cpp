#include "runtime/schedule/executor_state.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {

// ---- The rules ----------------------------------------------------------------------------------

Executor::State::State(Config given) : config(std::move(given)) {
  SLUICEWAY_CHECK(config.key_count >= 0, "Executor: key_count is ", config.key_count,
                  ", expected at least 0");
  for (const LaneConfig& lane : config.lanes) {
    SLUICEWAY_CHECK(lane.stream != nullptr, "Executor: lane ", lane.name,
                    " has no stream, expected one for each of ", config.lanes.size(), " lanes");
    SLUICEWAY_CHECK(lane.depth > 0, "Executor: lane ", lane.name, " has depth ", lane.depth,
                    ", expected at least 1");
  }
  const auto check_lane = [&](const char* name, std::optional<LaneId> lane) {
    const auto count = static_cast<LaneId>(config.lanes.size());
    SLUICEWAY_CHECK(!lane || (*lane >= 0 && *lane < count), "Executor: ", name, " is lane ", *lane,
                    ", expected 0 to ", count - 1);
  };
  check_lane("gather_before", config.plan.gather_before);
  check_lane("device_lane", config.plan.device_lane);
  plan = {config.order, config.transition, config.plan};
  lanes.resize(config.lanes.size());
  use = no_use();
  keys.resize(static_cast<std::size_t>(config.key_count));
  for (Key& key : keys) {
    key.gathered.resize(lanes.size());
    key.last.resize(lanes.size());
  }
}

Executor::State::Key& Executor::State::checked_key(const char* function, int key) {
  SLUICEWAY_CHECK(key >= 0 && key < config.key_count, function, ": key is ", key,
                  ", expected 0 to ", config.key_count - 1);
  return keys[static_cast<std::size_t>(key)];
}

void Executor::State::check_hops(const Payload& payload) const {
  const auto lane_count = static_cast<LaneId>(lanes.size());
  LaneId before = -1;
  for (const Hop& hop : payload.hops) {
    SLUICEWAY_CHECK(hop.lane > before && hop.lane < lane_count, "submit: payload ", payload.name,
                    " has a hop in lane ", hop.lane, " after one in lane ", before,
                    ", expected ascending lanes below ", lane_count);
    SLUICEWAY_CHECK((hop.run == nullptr) != (hop.start == nullptr), "submit: payload ",
                    payload.name, " has ", hop.run == nullptr ? "neither" : "both",
                    " of run and start in lane ", hop.lane, ", expected exactly one");
    before = hop.lane;
  }
  SLUICEWAY_CHECK(payload.hold_before.value_or(0) <= payload.hops.size(), "submit: payload ",
                  payload.name, " is held before hop ", payload.hold_before.value_or(0),
                  ", expected at most ", payload.hops.size());
}

std::string_view Executor::State::lane_name(const Item& item, std::size_t hop) const noexcept {
  const std::vector<Hop>& hops = item.payload.hops;
  if (hop >= hops.size()) return "none";
  return config.lanes[static_cast<std::size_t>(hops[hop].lane)].name;
}

std::string_view Executor::State::hold_name(const Item& item) const noexcept {
  return item.payload.hold_before ? lane_name(item, *item.payload.hold_before) : "none";
}

LaneUse Executor::State::no_use() const {
  return {std::vector<double>(lanes.size()), std::vector<std::uint64_t>(lanes.size())};
}

bool Executor::State::must_park(const Item& item, std::size_t hop) const noexcept {
  if (item.payload.hold_before == hop && !released(item)) return true;
  return item.gate == hop && (!released(item) || old_before_gate > 0);
}

bool Executor::State::held_back(const Item& item) const noexcept {
  return !released(item) && (item.payload.hold_before || item.gate != kNone);
}

bool Executor::State::passed_hold(const Item& item) const noexcept {
  const std::optional<std::size_t> hold = item.payload.hold_before;
  return !hold || item.hop > *hold || (item.hop == *hold && item.place != Place::kParked);
}

bool Executor::State::idle() const noexcept {
  return destroying == 0 && std::all_of(lanes.begin(), lanes.end(), [](const LaneState& lane) {
           return lane.running == 0 && !lane.dispatching;
         });
}

void Executor::State::throw_if_failed(Lock& lock) {
  if (!error) return;
  wait_until(lock, [&] { return given_up || idle(); });
  std::rethrow_exception(error);
}

void Executor::State::count_unsent(Lock&) {
  unsent = 0;
  for (Key& key : keys) key.unsent = 0;
  for (Item& item : items) {
    if (item.is_sent || held_back(item)) continue;
    ++key_of(item).unsent;
    ++unsent;
  }
}

std::vector<Event> Executor::State::ends_for(const Key& key) const {
  if (!plan.forward_waits_for_all()) return key.ends;
  std::vector<Event> ends;
  for (const LaneState& lane : lanes) {
    if (lane.last_end.state() != nullptr) ends.push_back(lane.last_end);
  }
  return ends;
}

// ---- Into a lane, and out of the lanes ----------------------------------------------------------

void Executor::State::make_room(Lock&) {
  const std::size_t needed = items.size() + 1;
  const auto grow = [&](std::vector<Item*>& places) {
    if (places.capacity() < needed) places.reserve(2 * needed);
  };
  grow(parked);
  for (LaneState& lane : lanes) grow(lane.ready);
}

void Executor::State::add(Lock&, Item* item) {
  item->step = step;
  item->arrival = arrivals++;
  item->after = std::exchange(item->payload.after, Event());
  item->rank = plan.rank(item->step, item->payload.deadline, item->arrival);
  const std::vector<Hop>& hops = item->payload.hops;
  const auto first_from = [&](LaneId lane) {
    const auto found =
        std::find_if(hops.begin(), hops.end(), [&](const Hop& hop) { return hop.lane >= lane; });
    return static_cast<std::size_t>(found - hops.begin());
  };
  if (const std::optional<LaneId> gate = plan.gate()) {
    item->gate = first_from(*gate);
    if (item->gate > 0) ++new_before_gate;
  }
  if (const std::optional<LaneId> device = plan.lanes.device_lane) {
    const std::size_t hop = first_from(*device);
    if (hop < hops.size() && hops[hop].lane == *device) item->device_hop = hop;
  }
  Key& key = key_of(*item);
  ++key.payloads;
  if (held_back(*item)) return;
  ++key.moving;
  ++moving;
  ++key.unsent;
  ++unsent;
}

void Executor::State::leave_before_gate(const Item& item) noexcept {
  --(released(item) ? old_before_gate : new_before_gate);
}

bool Executor::State::goes_later(const Item* a, const Item* b) noexcept {
  return b->rank < a->rank;
}

void Executor::State::enter(Lock& lock, Item* item, Items& gone) {
  if (must_park(*item, item->hop)) {
    item->place = Place::kParked;
    if (closing && !released(*item)) {
      take_out(lock, item, gone);
    } else {
      parked.push_back(item);
    }
    return;
  }
  if (item->hop == item->payload.hops.size()) {
    note_times(*item);
    take_out(lock, item, gone);
    return;
  }
  item->place = Place::kReady;
  std::vector<Item*>& ready = lanes[item->lane()].ready;
  ready.push_back(item);
  std::push_heap(ready.begin(), ready.end(), goes_later);
}

void Executor::State::open_gates(Lock& lock, Items& gone) {
  // An item that enters may open the gate for another: repeat until none moves.
  for (bool moved = true; moved;) {
    const auto first_free = std::partition(parked.begin(), parked.end(), [&](const Item* item) {
      return must_park(*item, item->hop);
    });
    const std::vector<Item*> opened(first_free, parked.end());
    parked.erase(first_free, parked.end());
    for (Item* item : opened) enter(lock, item, gone);
    moved = !opened.empty();
  }
}

void Executor::State::advance(Lock& lock, Item* item, Items& gone) {
  ++item->hop;
  const bool at_gate = item->hop == item->gate;
  if (at_gate) leave_before_gate(*item);
  enter(lock, item, gone);
  if (at_gate) open_gates(lock, gone);
}

void Executor::State::take_out(Lock&, Item* item, Items& gone) {
  if (item->gate != kNone && item->hop < item->gate) leave_before_gate(*item);
  Key& key = key_of(*item);
  if (--key.payloads == 0) {
    key.ends_in.clear();
    key.ends.clear();
  }
  if (!held_back(*item)) {
    --key.moving;
    --moving;
    if (!item->is_sent) {
      --key.unsent;
      --unsent;
    }
  }
  gone.splice(gone.end(), items, item->self);
  changed.notify_all();
}

void Executor::State::stop(Lock&, Item* item) {
  if (item->place == Place::kParked) std::erase(parked, item);
  if (item->place != Place::kReady) return;
  std::vector<Item*>& ready = lanes[item->lane()].ready;
  std::erase(ready, item);
  std::make_heap(ready.begin(), ready.end(), goes_later);
  item->place = Place::kParked;
}

const Executor::State::Item* Executor::State::mark_recalled(Lock& lock, int key,
                                                            std::uint64_t number) {
  const Item* passed = nullptr;
  for (Item& item : items) {
    if (item.payload.key != key || item.recalled_by != 0) continue;
    if (passed_hold(item)) {
      passed = &item;
    } else {
      stop(lock, &item);
      item.recalled_by = number;
    }
  }
  return passed;
}

void Executor::State::fail(Lock& lock, std::exception_ptr named, Items& gone) {
  error = std::move(named);
  for (LaneState& lane : lanes) lane.ready.clear();
  parked.clear();
  for (auto next = items.begin(); next != items.end();) {
    Item* item = &*next++;
    if (!item->in_flight()) take_out(lock, item, gone);
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
