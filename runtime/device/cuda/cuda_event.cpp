#include "runtime/device/cuda/cuda_event.h"

#include "runtime/device/cuda/cuda_check.h"

namespace sluiceway::cuda {

OwnedEvent::OwnedEvent(cudaStream_t stream, Timing timing) {
  const unsigned flags =
      cudaEventBlockingSync | (timing == Timing::kOff ? cudaEventDisableTiming : 0U);
  SLUICEWAY_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
  const cudaError_t recorded = cudaEventRecord(event_, stream);
  if (recorded == cudaSuccess) return;
  cudaEventDestroy(event_);
  SLUICEWAY_CUDA_CHECK(recorded);
}

OwnedEvent::~OwnedEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

bool CudaEvent::happened() const {
  const cudaError_t result = cudaEventQuery(event_.get());
  if (result != cudaSuccess) cudaGetLastError();
  return result != cudaErrorNotReady;
}

void CudaEvent::wait() const { SLUICEWAY_CUDA_CHECK(cudaEventSynchronize(event_.get())); }

void CudaEvent::then(std::function<void()> action) {
  const auto finish = [self = shared_from_this(), action = std::move(action)] {
    if (cudaEventSynchronize(self->get()) != cudaSuccess) cudaGetLastError();
    action();
  };
  if (happened() || !watcher_->post(finish)) finish();
}

}  // namespace sluiceway::cuda
