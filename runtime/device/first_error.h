// Keeps the first exception of tasks that have nobody to report it to; later ones are dropped.
//
// Thread safety: every call from any thread.
#pragma once

#include <exception>
#include <mutex>
#include <utility>

namespace sluiceway {

class FirstError {
 public:
  void keep(std::exception_ptr error) noexcept {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
  }

  // Rethrows it once; does nothing if there is none.
  void rethrow() {
    std::exception_ptr error;
    {
      const std::lock_guard lock(mutex_);
      error = std::exchange(error_, nullptr);
    }
    if (error != nullptr) std::rethrow_exception(error);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace sluiceway
