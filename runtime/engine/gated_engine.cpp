#include "runtime/engine/gated_engine.h"

#include <thread>

namespace sluiceway {
namespace {

// Limits how long the executor waits for a lane in which nothing finishes, while this lives.
class WaitLimit {
 public:
  WaitLimit(Executor& executor, std::chrono::milliseconds most) : executor_(executor) {
    executor_.give_up_after(most);
  }
  WaitLimit(const WaitLimit&) = delete;
  WaitLimit& operator=(const WaitLimit&) = delete;
  ~WaitLimit() { executor_.give_up_after({}); }

 private:
  Executor& executor_;
};

}  // namespace

void GatedEngine::close(std::chrono::milliseconds wait_limit) {
  const WaitLimit bounded(lanes_->executor(), wait_limit);
  drop();
  end_work();
}

void GatedEngine::finish(std::chrono::milliseconds wait_limit) {
  try {
    close(wait_limit);
  } catch (...) {
    // A failed executor has drained its lanes, and after a failed commit they will soon be empty.
    // Then nothing runs any more, and that is enough. This loop counts its own sleeps, because a
    // clock would also count the time in which the process was suspended.
    constexpr std::chrono::milliseconds kBetween{1};
    for (auto left = wait_limit; !idle() && left.count() > 0; left -= kBetween) {
      std::this_thread::sleep_for(kBetween);
    }
    if (!idle()) throw;
    gate_->forget();
    forget_gradients();
  }
}

}  // namespace sluiceway
