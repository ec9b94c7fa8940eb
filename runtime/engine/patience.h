// Waits of the executor have an end while this lives.
#pragma once

#include <chrono>

#include "runtime/schedule/executor.h"

namespace sluiceway {

class Patience {
 public:
  Patience(Executor& executor, std::chrono::milliseconds most) : executor_(executor) {
    executor_.give_up_after(most);
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
  ~Patience() { executor_.give_up_after({}); }

 private:
  Executor& executor_;
};

}  // namespace sluiceway
