#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_event.h"
#include "runtime/device/cuda/host_signal.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/first_error.h"
#include "runtime/device/worker.h"
#include "runtime/trace/trace.h"

namespace sluiceway::cuda {
namespace {

// A cudaStream_t of ours or of the framework; only ours is destroyed.
class StreamHandle {
 public:
  static StreamHandle create() {
    StreamHandle handle;
    SLUICEWAY_CUDA_CHECK(cudaStreamCreateWithFlags(&handle.stream_, cudaStreamNonBlocking));
    handle.owned_ = true;
    return handle;
  }
  explicit StreamHandle(cudaStream_t stream = nullptr) noexcept : stream_(stream) {}
  StreamHandle(StreamHandle&& other) noexcept
      : stream_(other.stream_), owned_(std::exchange(other.owned_, false)) {}
  StreamHandle& operator=(StreamHandle&&) = delete;
  ~StreamHandle() {
    if (!owned_) return;
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  bool owned_ = false;
};

// One task's stretch of a stream, between two timed events.
class Stretch {
 public:
  explicit Stretch(cudaStream_t stream)
      : stream_(stream), begin_(stream, OwnedEvent::Timing::kOn) {}

  void run(Stream::Task& task, DeviceId device) noexcept {
    try {
      task(StreamRef::cuda(device.ordinal(), stream_));
    } catch (...) {
      error_ = std::current_exception();
    }
    try {
      end_.emplace(stream_, OwnedEvent::Timing::kOn);
    } catch (...) {
      if (error_ == nullptr) error_ = std::current_exception();
    }
  }

  // Waits until the device has passed the end.
  Completion finish() noexcept {
    Completion completion;
    float elapsed_ms = 0;
    if (end_) {
      const cudaError_t result = cudaEventSynchronize(end_->get());
      if (error_ == nullptr) error_ = error_of(result, "cudaEventSynchronize");
      if (result == cudaSuccess) cudaEventElapsedTime(&elapsed_ms, begin_.get(), end_->get());
    } else {
      cudaStreamSynchronize(stream_);
    }
    completion.end_us = now_us();
    completion.begin_us = completion.end_us - 1e3 * static_cast<double>(elapsed_ms);
    completion.error = error_;
    return completion;
  }

 private:
  cudaStream_t stream_;
  OwnedEvent begin_;
  std::optional<OwnedEvent> end_;
  std::exception_ptr error_;
};

// Completions are seen by a worker that sleeps on each task's end event. A host function of the
// stream would not do: it may not call CUDA, so `done` could not enqueue, and it is not called
// after a failure. What a task holds lives until the device is done with it.
class CudaStream final : public StreamBackend {
 public:
  CudaStream(DeviceId device, StreamHandle stream, const Stream::Options& options)
      : device_(device),
        stream_(std::move(stream)),
        error_(std::make_shared<FirstError>()),
        worker_({options.name, options.cpu}),
        watcher_(std::make_shared<Watcher>(worker_)) {}

  ~CudaStream() override { watcher_->close(); }  // Then the worker finishes, then the stream.

  void enqueue(Stream::Task task, Stream::Done done) override {
    const DeviceGuard guard(device_);
    auto stretch = std::make_shared<Stretch>(stream_.get());
    stretch->run(task, device_);
    worker_.post([stretch = std::move(stretch), task = std::move(task), done = std::move(done),
                  error = error_]() mutable noexcept {
      const Completion completion = stretch->finish();
      task = nullptr;
      if (done) {
        done(completion);
      } else if (completion.error != nullptr) {
        error->keep(completion.error);
      }
    });
  }

  void wait(const Event& event) override {
    if (event.happened()) return;
    const DeviceGuard guard(device_);
    if (const auto* cuda_event = dynamic_cast<const CudaEvent*>(event.state().get())) {
      SLUICEWAY_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), cuda_event->get(), 0));
      return;
    }
    hold_until(
        event, HostSignal::make(page_locked_words()),
        [this](std::uint32_t* word) { hold_for(word, stream_.get()); },
        [this] { return record(); });
  }

  Event record() override {
    const DeviceGuard guard(device_);
    return Event(
        std::make_shared<CudaEvent>(OwnedEvent(stream_.get(), OwnedEvent::Timing::kOff), watcher_));
  }

  void synchronize() override {
    SLUICEWAY_CHECK(
        !worker_.is_current(),
        "stream: synchronize() in a `done` of the same stream, expected another thread");
    const auto completions = std::make_shared<HostEvent>();
    worker_.post([completions] { completions->set(); });
    completions->wait();
    error_->rethrow();
    SLUICEWAY_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
  }

  DeviceId device() const noexcept override { return device_; }
  bool waits_on_device() const noexcept override { return true; }

 private:
  DeviceId device_;
  StreamHandle stream_;
  std::shared_ptr<FirstError> error_;
  Worker worker_;
  std::shared_ptr<Watcher> watcher_;
};

}  // namespace

std::unique_ptr<StreamBackend> make_owned_stream(DeviceId device, const Stream::Options& options) {
  const DeviceGuard guard(device);
  return std::make_unique<CudaStream>(device, StreamHandle::create(), options);
}

std::unique_ptr<StreamBackend> make_borrowed_stream(StreamRef stream) {
  const DeviceId device = stream.device();
  check_device(device);
  return std::make_unique<CudaStream>(device,
                                      StreamHandle(static_cast<cudaStream_t>(stream.native())),
                                      Stream::Options{"borrowed", -1});
}

}  // namespace sluiceway::cuda
