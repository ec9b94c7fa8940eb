// Ends a hop when the last of several requests has ended, with the first error among them.
//
// Thread safety: end() from any thread.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

#include "runtime/schedule/hop.h"

namespace sluiceway {

class Countdown {
 public:
  Countdown(int count, HopDone done) : left_(count), done_(std::move(done)) {}

  void end(const std::exception_ptr& error) {
    std::exception_ptr first;
    {
      const std::lock_guard lock(mutex_);
      if (error && !error_) error_ = error;
      if (--left_ > 0) return;
      first = error_;
    }
    done_(first);
  }

 private:
  std::mutex mutex_;
  int left_;
  std::exception_ptr error_;
  HopDone done_;
};

}  // namespace sluiceway
