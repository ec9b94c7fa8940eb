// Waits of Executor::State that can be interrupted, and lanes that it abandons.
#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/error.h"
#include "runtime/schedule/executor_state.h"
#include "runtime/schedule/lane_error.h"

namespace sluiceway {
namespace {

// A hop that takes this many times as long as any earlier one in its lane is not just slow.
constexpr double kLonger = 1.5;

class Unlocked {
 public:
  explicit Unlocked(std::unique_lock<std::mutex>& lock) : lock_(lock) { lock_.unlock(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() { lock_.lock(); }

 private:
  std::unique_lock<std::mutex>& lock_;
};

}  // namespace

void Executor::State::look_up(Lock& lock) {
  if (patience) give_up_stuck_lane(lock);
  if (!config.check_interrupt) return;
  const Unlocked unlocked(lock);
  config.check_interrupt();
}

double Executor::State::limit_s(Lock&) const noexcept { return steady_s() - missed_s; }

// A process that is suspended looks late, and its lanes have stood still as well.
void Executor::State::count_missed(Lock&) {
  const double now_s = steady_s();
  missed_s += std::max(now_s - std::exchange(looked_up_s, now_s) - kCounted.count(), 0.0);
}

void Executor::State::give_up_stuck_lane(Lock& lock) {
  count_missed(lock);
  const double now_s = limit_s(lock);
  for (const Item& item : items) {
    if (item.started == item.finished) continue;
    // Further hops in flight wait for this one.
    const std::size_t hop = item.finished;
    const LaneState& lane = lanes[static_cast<std::size_t>(item.payload.hops[hop].lane)];
    const double busy_s = now_s - std::max(lane.busy_since_s, patient_since_s);
    if (busy_s < std::max(patience->count(), kLonger * lane.longest_s)) continue;
    given_up = true;
    changed.notify_all();
    if (error) return;
    const Timeout stuck(concat(
        "no hop finished for ", std::round(10 * busy_s) / 10,
        " s, so the lane is abandoned, and the memory that it uses is never freed; if it is only "
        "slow, call synchronize() first"));
    Items gone;
    fail(lock, name_error(std::make_exception_ptr(stuck), lane_name(item, hop), item.payload.name),
         gone);
    return destroy(lock, gone);
  }
}

void Executor::State::put_back(Lock& lock, std::uint64_t recall, Items& gone) {
  for (auto next = items.begin(); next != items.end();) {
    Item* item = &*next++;
    if (item->recalled_by != recall) continue;
    item->recalled_by = 0;
    if (item->place == Place::kParked && !error) {
      enter(lock, item, gone);
    } else {
      settle(lock, item, gone);
    }
  }
  changed.notify_all();
}

}  // namespace sluiceway
