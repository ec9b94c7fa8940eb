// A cudaEvent_t, owned, and the form of Event that it gives.
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

  // Recorded on `stream`, whose device is current. A thread that waits for it sleeps. Events are
  // taken from those that were let go of before.
  OwnedEvent(cudaStream_t stream, Timing timing);
  OwnedEvent(OwnedEvent&& other) noexcept
      : timing_(other.timing_),
        device_(other.device_),
        event_(std::exchange(other.event_, nullptr)) {}
  OwnedEvent& operator=(OwnedEvent&&) = delete;
  ~OwnedEvent();
  void record(cudaStream_t stream);  // Again; the stream's device is current.
  cudaEvent_t get() const noexcept { return event_; }

 private:
  Timing timing_;
  int device_ = 0;
  cudaEvent_t event_ = nullptr;
};

// Returns or throws when `stream`, whose device is current, is done with all that it has been
// given. The thread sleeps meanwhile, where cudaStreamSynchronize() may spin.
void sleep_until_idle(cudaStream_t stream);

// The same where nothing may be thrown; what went wrong, the next call of the stream says.
void try_sleep_until_idle(cudaStream_t stream) noexcept;

// The thread that waits for a stream's events, in their order, as long as the stream lives.
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

// A device that has failed never reaches its events, so they count as happened; wait() and the
// stream's own calls say what went wrong.
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
