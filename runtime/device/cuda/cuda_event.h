// An owned cudaEvent_t, and the form of Event based on it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/device/event_state.h"
#include "runtime/device/worker.h"

namespace sluiceway::cuda {

class OwnedEvent {  // Move-only.
 public:
  enum class Timing { kOff, kOn };

  // Records on `stream`, whose device must be current. A thread that waits for the event sleeps.
  // Reuses events that were freed before.
  OwnedEvent(cudaStream_t stream, Timing timing);
  OwnedEvent(OwnedEvent&& other) noexcept
      : timing_(other.timing_),
        device_(other.device_),
        event_(std::exchange(other.event_, nullptr)) {}
  OwnedEvent& operator=(OwnedEvent&&) = delete;
  ~OwnedEvent();
  void record(cudaStream_t stream);  // Records again; the stream's device is current.
  cudaEvent_t get() const noexcept { return event_; }

 private:
  Timing timing_;
  int device_ = 0;
  cudaEvent_t event_ = nullptr;
};

// Returns or throws when `stream`, whose device must be current, has finished all its work. The
// thread sleeps meanwhile, whereas cudaStreamSynchronize() may spin.
void sleep_until_idle(cudaStream_t stream);

// The same for code that must not throw; the next call on the stream reports the error.
void try_sleep_until_idle(cudaStream_t stream) noexcept;

// The thread that waits for a stream's events, in order, while the stream lives.
class Watcher {
 public:
  explicit Watcher(Worker& worker) noexcept : worker_(&worker) {}

  bool post(Worker::Job job) {  // False: the stream is gone, and all its work has finished.
    const std::lock_guard lock(mutex_);
    if (worker_ == nullptr) return false;
    worker_->post(std::move(job));
    return true;
  }

  void close() noexcept {
    const std::lock_guard lock(mutex_);
    worker_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Worker* worker_;
};

// A failed device never reaches its events, so they count as happened; wait() and the stream's own
// calls report the error.
class CudaEvent final : public Event::State, public std::enable_shared_from_this<CudaEvent> {
 public:
  CudaEvent(OwnedEvent event, std::shared_ptr<Watcher> watcher) noexcept
      : event_(std::move(event)), watcher_(std::move(watcher)) {}

  bool happened() const override;
  void wait() const override;
  void then(std::function<void()> action) override;
  cudaEvent_t get() const noexcept { return event_.get(); }

 private:
  OwnedEvent event_;
  std::shared_ptr<Watcher> watcher_;
};

}  // namespace sluiceway::cuda
