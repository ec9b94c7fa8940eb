// Limits how long the executor waits for a lane in which nothing finishes, while this lives.
#pragma once

#include <chrono>

#include "runtime/schedule/executor.h"

namespace sluiceway {

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

}  // namespace sluiceway
