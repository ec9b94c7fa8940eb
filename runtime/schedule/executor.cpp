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
  for (auto next = s.items.begin(); next != s.items.end();) {
    State::Item* item = &*next++;
    if (item->place != State::Place::kParked || s.released(*item) || item->recalled_by != 0)
      continue;
    s.stop(lock, item);
    s.take_out(lock, item, gone);
  }
  s.destroy(lock, gone);
  s.changed.wait(lock, [&] { return s.idle() && s.items.empty(); });
}

void Executor::submit(Payload payload) {
  State& s = *state_;
  s.checked_key("submit", payload.key);
  s.check_hops(payload);
  State::Items own, gone;
  State::Item* item = &own.emplace_back(std::move(payload));
  item->self = own.begin();
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  s.make_room(lock);
  s.items.splice(s.items.end(), own);
  s.add(lock, item);
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
  s.old_before_gate += std::exchange(s.new_before_gate, 0);
  for (State::Key& key : s.keys) key.moving = key.payloads;
  s.moving = s.items.size();
  s.count_unsent(lock);
  s.open_gates(lock, gone);
  s.dispatch(lock);
  s.destroy(lock, gone);
}

bool Executor::recall(int key) {
  State& s = *state_;
  s.checked_key("recall", key);
  State::Items gone;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  const std::uint64_t number = ++s.recalls;
  const auto any = [&](const auto& condition) {
    return std::any_of(s.items.begin(), s.items.end(), condition);
  };
  const auto ours = [&](const State::Item& item) { return item.recalled_by == number; };
  const auto of_others = [&](const State::Item& item) {  // Threads that recall the same key.
    return item.payload.key == key && item.recalled_by != 0 && item.recalled_by < number;
  };
  for (bool waited = false;; waited = true) {
    const State::Item* passed = s.mark_recalled(lock, key, number);
    if (any(ours)) break;
    SLUICEWAY_CHECK(waited || passed == nullptr || any(of_others), "recall: payload ",
                    passed->payload.name, " of key ", key, " is in lane ",
                    s.lane_name(*passed, passed->hop),
                    "; it can be recalled only before its hold (", s.hold_name(*passed), ")");
    if (!any(of_others)) return false;
    s.wait_until(lock, [&] { return s.error || !any(of_others); });
    s.throw_if_failed(lock);
  }
  try {
    s.wait_until(lock, [&] {
      return s.error || !any([&](const auto& item) { return ours(item) && item.in_flight(); });
    });
  } catch (...) {
    s.put_back(lock, number, gone);
    s.dispatch(lock);
    s.destroy(lock, gone);
    throw;
  }
  s.throw_if_failed(lock);
  for (auto next = s.items.begin(); next != s.items.end();) {
    State::Item* item = &*next++;
    if (ours(*item)) s.take_out(lock, item, gone);
  }
  s.open_gates(lock, gone);
  s.dispatch(lock);
  s.destroy(lock, gone);
  return true;
}

double Executor::wait(int key) {
  State& s = *state_;
  const State::Key& waited_for = s.checked_key("wait", key);
  State::Lock lock(s.mutex);
  const auto blocked = [&] { return !s.error && s.moving_for(waited_for) > 0; };
  double stall_s = 0;
  if (blocked()) {
    const double begin_s = steady_s();
    const double busy_before_s = s.device_busy_s(begin_s);
    s.wait_until(lock, [&] { return !blocked(); });
    const double end_s = steady_s();
    stall_s = (end_s - begin_s) - (s.device_busy_s(end_s) - busy_before_s);
  }
  s.throw_if_failed(lock);
  return std::max(stall_s, 0.0);
}

void Executor::acquire(int key, Stream& reader) {
  State& s = *state_;
  const State::Key& asked_for = s.checked_key("acquire", key);
  std::vector<Event> ends;
  {
    State::Lock lock(s.mutex);
    s.wait_until(lock, [&] { return s.error || s.unsent_for(asked_for) == 0; });
    s.throw_if_failed(lock);
    ends = s.ends_for(asked_for);
  }
  for (const Event& end : ends) reader.wait(end);
}

void Executor::drain() {
  State& s = *state_;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  for (const State::Item& item : s.items) {
    SLUICEWAY_CHECK(!s.held_back(item), "drain: payload ", item.payload.name, " of key ",
                    item.payload.key, " is held; call release() or recall(", item.payload.key,
                    ") first");
  }
  const std::uint64_t arrivals = s.arrivals;  // Does not wait for later submissions.
  s.wait_until(lock,
               [&] { return s.error || s.items.empty() || s.items.front().arrival >= arrivals; });
  s.throw_if_failed(lock);
}

bool Executor::busy(int key) const {
  State& s = *state_;
  const State::Key& asked_for = s.checked_key("busy", key);
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  return asked_for.payloads > 0;
}

bool Executor::moves(int key) const {
  State& s = *state_;
  const State::Key& asked_for = s.checked_key("moves", key);
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  return s.moving_for(asked_for) > 0;
}

bool Executor::has_failed() const noexcept {
  const State::Lock lock(state_->mutex);
  return state_->error != nullptr;
}

void Executor::set_transition(std::uint64_t deadline) {
  State& s = *state_;
  State::Lock lock(s.mutex);
  s.throw_if_failed(lock);
  s.plan.transition = deadline;
}

void Executor::give_up_after(std::optional<State::Seconds> patience) {
  State::Lock lock(state_->mutex);
  state_->patience = patience;
  state_->looked_up_s = steady_s();
  state_->patient_since_s = state_->limit_s(lock);
}

bool Executor::idle() const {
  const State::Lock lock(state_->mutex);
  return state_->idle();
}

std::vector<double> Executor::last_seconds(int key) const {
  const State::Key& asked_for = state_->checked_key("last_seconds", key);
  State::Lock lock(state_->mutex);
  return asked_for.last;
}

LaneUse Executor::take_use() {
  State::Lock lock(state_->mutex);
  return std::exchange(state_->use, state_->no_use());
}

}  // namespace sluiceway
