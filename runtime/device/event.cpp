#include "runtime/device/event.h"

#include <utility>

#include "runtime/device/event_state.h"

namespace sluiceway {

bool Event::happened() const { return state_ == nullptr || state_->happened(); }

void Event::wait() const {
  if (state_ != nullptr) state_->wait();
}

void HostEvent::wait() const {
  if (happened()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return happened(); });
}

void HostEvent::then(std::function<void()> action) {
  {
    const std::lock_guard lock(mutex_);
    if (!happened()) {
      actions_.push_back(std::move(action));
      return;
    }
  }
  action();
}

void HostEvent::set() noexcept {
  std::vector<std::function<void()>> actions;
  {
    const std::lock_guard lock(mutex_);
    happened_.store(true, std::memory_order_release);
    actions.swap(actions_);
    changed_.notify_all();
  }
  for (const std::function<void()>& action : actions) action();
}

}  // namespace sluiceway
