#include "runtime/schedule/executor.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/schedule/executor_state.h"

namespace sluiceway {

Executor::Executor(Config config) : state_(std::make_shared<State>(std::move(config))) {}

Executor::~Executor() {
  State& s = *state_;
  State::Items gone;
  State::Lock lock(s.mutex);
  s.closing = true;
  for (const auto& item : s.items) {
    if (item && item->place == State::Place::kParked && !s.released(*item) && !item->recalled) {
      gone.push_back(s.take_out(lock, item.get()));
    }
  }
  std::erase_if(s.parked, [&](const State::Item* item) { return !s.released(*item); });
  s.destroy(lock, gone);
  s.changed.wait(lock, [&] {
    return s.idle() && std::none_of(s.items.begin(), s.items.end(),
                                    [](const auto& item) { return item != nullptr; });
  });
}

void Executor::submit(Payload payload) {
  State& s = *state_;
  s.check_layer("submit", payload.layer);
  auto owned = std::make_unique<State::Item>();
  owned->payload = std::move(payload);
  State::Items gone;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  const int layer = owned->payload.layer;
  SLUICEWAY_CHECK(s.item_at(layer) == nullptr, "submit: layer ", layer, " still has payload ",
                  s.item_at(layer)->payload.name, " in lane ",
                  to_string(kLanes[s.item_at(layer)->lane]), ", expected none; wait(", layer,
                  ") or recall(", layer, ") first");
  State::Item* item = owned.get();
  s.items[static_cast<std::size_t>(layer)] = std::move(owned);
  item->step = s.step;
  item->arrival = s.arrivals++;
  item->rank = s.plan.rank(item->step, layer, item->arrival);
  ++s.new_before_host;
  s.enter(lock, item, gone);
  s.dispatch(lock);
  s.destroy(lock, gone);
}

void Executor::release() {
  State& s = *state_;
  State::Items gone;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  ++s.step;
  s.old_before_host += std::exchange(s.new_before_host, 0);
  s.open_gates(lock, gone);
  s.dispatch(lock);
  s.destroy(lock, gone);
}

bool Executor::recall(int layer) {
  State& s = *state_;
  s.check_layer("recall", layer);
  State::Items gone;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  State::Item* item = s.item_at(layer);
  if (item == nullptr) return false;
  SLUICEWAY_CHECK(!s.passed_hold(*item), "recall: payload ", item->payload.name, " of layer ",
                  layer, " is in lane ", to_string(kLanes[item->lane]),
                  ", expected it before its hold (",
                  item->payload.hold_before ? to_string(*item->payload.hold_before) : "none", ")");
  const std::uint64_t arrival = item->arrival;
  const auto still_there = [&] {
    return s.item_at(layer) == item && item->arrival == arrival && !s.error;
  };
  if (item->recalled) {  // By another thread, which waits for its task.
    s.changed.wait(lock, [&] { return !still_there(); });
    s.throw_if_failed(lock);
    return false;
  }
  item->recalled = true;
  if (item->place == State::Place::kReady) s.drop_from_heap(lock, item);
  if (item->place == State::Place::kParked) std::erase(s.parked, item);
  s.changed.wait(lock, [&] { return !still_there() || item->place != State::Place::kRunning; });
  s.throw_if_failed(lock);
  gone.push_back(s.take_out(lock, item));
  s.open_gates(lock, gone);
  s.dispatch(lock);
  s.destroy(lock, gone);
  return true;
}

double Executor::wait(int layer) {
  State& s = *state_;
  s.check_layer("wait", layer);
  State::Lock lock(s.mutex);
  const auto waited_for = [&](const State::Item* item) {
    return item != nullptr && !s.held_back(*item);
  };
  const auto blocked = [&] {
    if (s.error) return false;
    if (!s.plan.forward_waits_for_all()) return waited_for(s.item_at(layer));
    return std::any_of(s.items.begin(), s.items.end(),
                       [&](const auto& item) { return waited_for(item.get()); });
  };
  double stall_s = 0;
  if (blocked()) {
    const double begin_s = steady_s();
    const double busy_before_s = s.apply_busy_s(begin_s);
    s.changed.wait(lock, [&] { return !blocked(); });
    const double end_s = steady_s();
    stall_s = (end_s - begin_s) - (s.apply_busy_s(end_s) - busy_before_s);
  }
  s.throw_if_failed(lock);
  return std::max(stall_s, 0.0);
}

void Executor::drain() {
  State& s = *state_;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  for (const auto& item : s.items) {
    SLUICEWAY_CHECK(!item || !s.held_back(*item), "drain: payload ", item->payload.name,
                    " of layer ", item->payload.layer,
                    " is held, expected none; release() or recall(", item->payload.layer,
                    ") first");
  }
  const std::uint64_t arrivals = s.arrivals;  // What others submit meanwhile is not waited for.
  s.changed.wait(lock, [&] {
    return s.error || std::none_of(s.items.begin(), s.items.end(), [&](const auto& item) {
             return item && item->arrival < arrivals;
           });
  });
  s.throw_if_failed(lock);
}

bool Executor::busy(int layer) const {
  State& s = *state_;
  s.check_layer("busy", layer);
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  return s.item_at(layer) != nullptr;
}

void Executor::set_transition_layer(int layer) {
  State& s = *state_;
  SLUICEWAY_CHECK(layer >= 0 && layer <= s.config.layer_count, "set_transition_layer: layer is ",
                  layer, ", expected 0 to ", s.config.layer_count);
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  s.plan.transition_layer = layer;
}

std::array<double, kLaneCount> Executor::last_seconds(int layer) const {
  state_->check_layer("last_seconds", layer);
  State::Lock lock(state_->mutex);
  return state_->last_seconds[static_cast<std::size_t>(layer)];
}

LaneUse Executor::take_use() {
  State::Lock lock(state_->mutex);
  return std::exchange(state_->use, {});
}

}  // namespace sluiceway
