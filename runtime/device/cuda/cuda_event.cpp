#include "runtime/device/cuda/cuda_event.h"

#include <map>
#include <vector>

#include "runtime/device/cuda/cuda_check.h"

namespace sluiceway::cuda {
namespace {

// Free events, by device and timing. The driver may wait for an idle device when it destroys an
// event, so events are reused instead: a step like the one before creates none.
//
// An event may be returned before the device has reached it. A stream that waits for it waits for
// what it marked at the time of that call, whatever is recorded later.
class FreeEvents {
 public:
  static FreeEvents& of_process() {
    // Never destroyed: streams may end after every static object.
    static FreeEvents* const all = new FreeEvents;
    return *all;
  }

  cudaEvent_t take(int device, OwnedEvent::Timing timing) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<cudaEvent_t>& free = free_[{device, timing}];
      if (!free.empty()) {
        cudaEvent_t const event = free.back();
        free.pop_back();
        return event;
      }
    }
    make(device, timing);
    return take(device, timing);
  }

  void give_back(int device, OwnedEvent::Timing timing, cudaEvent_t event) noexcept {
    const std::lock_guard lock(mutex_);
    free_.find({device, timing})->second.push_back(event);
  }

 private:
  using Kind = std::pair<int, OwnedEvent::Timing>;
  static constexpr int kBatch = 32;  // So that steps of equal size soon have all they need.

  void make(int device, OwnedEvent::Timing timing) {
    const unsigned flags =
        cudaEventBlockingSync | (timing == OwnedEvent::Timing::kOff ? cudaEventDisableTiming : 0U);
    for (int i = 0; i < kBatch; ++i) {
      cudaEvent_t event = nullptr;
      SLUICEWAY_CUDA_CHECK(cudaEventCreateWithFlags(&event, flags));
      const std::lock_guard lock(mutex_);
      std::vector<cudaEvent_t>& free = free_[{device, timing}];
      free.reserve(++made_[{device, timing}]);  // So that give_back() never allocates.
      free.push_back(event);
    }
  }

  std::mutex mutex_;
  std::map<Kind, std::vector<cudaEvent_t>> free_;
  std::map<Kind, std::size_t> made_;
};

}  // namespace

OwnedEvent::OwnedEvent(cudaStream_t stream, Timing timing) : timing_(timing) {
  SLUICEWAY_CUDA_CHECK(cudaGetDevice(&device_));
  event_ = FreeEvents::of_process().take(device_, timing);
  const cudaError_t recorded = cudaEventRecord(event_, stream);
  if (recorded != cudaSuccess) FreeEvents::of_process().give_back(device_, timing, event_);
  check(recorded, "cudaEventRecord", __FILE__, __LINE__);
}

OwnedEvent::~OwnedEvent() {
  if (event_ != nullptr) FreeEvents::of_process().give_back(device_, timing_, event_);
}

void OwnedEvent::record(cudaStream_t stream) {
  SLUICEWAY_CUDA_CHECK(cudaEventRecord(event_, stream));
}

void sleep_until_idle(cudaStream_t stream) {
  try {
    const OwnedEvent reached(stream, OwnedEvent::Timing::kOff);
    SLUICEWAY_CUDA_CHECK(cudaEventSynchronize(reached.get()));
  } catch (...) {  // No event is available, or the device has failed.
    drop(cudaStreamSynchronize(stream));
    throw;
  }
}

void try_sleep_until_idle(cudaStream_t stream) noexcept {
  try {
    sleep_until_idle(stream);
  } catch (...) {  // The wait took place all the same.
  }
}

bool CudaEvent::happened() const {
  const cudaError_t result = cudaEventQuery(event_.get());
  drop(result);
  return result != cudaErrorNotReady;
}

void CudaEvent::wait() const { SLUICEWAY_CUDA_CHECK(cudaEventSynchronize(event_.get())); }

// The watcher waits for one event after another, in the order of the calls. A late call waits for
// all events that others asked for before it, so `action` must not depend on timing.
void CudaEvent::then(std::function<void()> action) {
  const auto finish = [self = shared_from_this(), action = std::move(action)] {
    drop(cudaEventSynchronize(self->get()));
    action();
  };
  if (happened() || !watcher_->post(finish)) finish();
}

}  // namespace sluiceway::cuda
