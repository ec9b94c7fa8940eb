#include <optional>

#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_event.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/device/time_mark.h"

namespace sluiceway::cuda {
namespace {

class CudaTimeMark final : public TimeMark {
 public:
  explicit CudaTimeMark(DeviceId device) noexcept : device_(device) {}

  void record(StreamRef stream) override {
    const DeviceGuard guard(device_);
    auto* const native = static_cast<cudaStream_t>(stream.native());
    if (event_) {
      event_->record(native);
    } else {
      event_.emplace(native, OwnedEvent::Timing::kOn);
    }
  }

  std::optional<double> seconds_since(const TimeMark& earlier) const override {
    const auto& begin = dynamic_cast<const CudaTimeMark&>(earlier).event_;
    if (!event_ || !begin) return std::nullopt;
    float elapsed_ms = 0;
    const cudaError_t result = cudaEventElapsedTime(&elapsed_ms, begin->get(), event_->get());
    drop(result);
    if (result == cudaErrorNotReady) return std::nullopt;
    return result == cudaSuccess ? 1e-3 * static_cast<double>(elapsed_ms) : 0;
  }

 private:
  DeviceId device_;
  std::optional<OwnedEvent> event_;  // Set by the first recording.
};

}  // namespace

std::unique_ptr<TimeMark> make_time_mark(DeviceId device) {
  return std::make_unique<CudaTimeMark>(device);
}

}  // namespace sluiceway::cuda
