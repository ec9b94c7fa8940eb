#include "runtime/device/cuda/cuda_event.h"

#include "runtime/device/cuda/cuda_check.h"

namespace sluiceway::cuda {

OwnedEvent::OwnedEvent(cudaStream_t stream, Timing timing) {
  const unsigned flags =
      cudaEventBlockingSync | (timing == Timing::kOff ? cudaEventDisableTiming : 0U);
  SLUICEWAY_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  const cudaError_t recorded = cudaEventRecord(event_, stream);
  if (recorded != cudaSuccess) drop(cudaEventDestroy(event_));
  check(recorded, "cudaEventRecord", __FILE__, __LINE__);
}

OwnedEvent::~OwnedEvent() {
  if (event_ != nullptr) drop(cudaEventDestroy(event_));
}

void OwnedEvent::record(cudaStream_t stream) {
  SLUICEWAY_CUDA_CHECK(cudaEventRecord(event_, stream));
}

void sleep_until_idle(cudaStream_t stream) {
  try {
    const OwnedEvent reached(stream, OwnedEvent::Timing::kOff);
    SLUICEWAY_CUDA_CHECK(cudaEventSynchronize(reached.get()));
  } catch (...) {  // No event can be had, or the device has failed.
    drop(cudaStreamSynchronize(stream));
    throw;
  }
}

void try_sleep_until_idle(cudaStream_t stream) noexcept {
  try {
    sleep_until_idle(stream);
  } catch (...) {  // It was waited for all the same.
  }
}

bool CudaEvent::happened() const {
  const cudaError_t result = cudaEventQuery(event_.get());
  drop(result);
  return result != cudaErrorNotReady;
}

void CudaEvent::wait() const { SLUICEWAY_CUDA_CHECK(cudaEventSynchronize(event_.get())); }

// The watcher waits for one event after the other, in the order in which somebody asked. Who asks
// late waits for all that others have asked for meanwhile, so that must not depend on `action`.
void CudaEvent::then(std::function<void()> action) {
  const auto finish = [self = shared_from_this(), action = std::move(action)] {
    drop(cudaEventSynchronize(self->get()));
    action();
  };
  if (happened() || !watcher_->post(finish)) finish();
}

}  // namespace sluiceway::cuda
