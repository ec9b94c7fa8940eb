#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/one_stream.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "runtime/device/cuda/cuda_check.h"
#include "runtime/device/cuda/cuda_event.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/first_error.h"
#include "runtime/device/host_stream.h"
#include "runtime/device/worker.h"
#include "runtime/trace/trace.h"

namespace sluiceway::cuda {
namespace {

// A cudaStream_t, ours or the framework's; only ours is destroyed.
class StreamHandle {
 public:
  static StreamHandle create(DeviceId device, Stream::Priority priority) {
    const DeviceGuard guard(device);
    int least = 0, greatest = 0;
    SLUICEWAY_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    StreamHandle handle(device, nullptr);
    SLUICEWAY_CUDA_CHECK(
        cudaStreamCreateWithPriority(&handle.stream_, cudaStreamNonBlocking,
                                     priority == Stream::Priority::kHigh ? greatest : least));
    handle.owned_ = true;
    return handle;
  }
  StreamHandle(DeviceId device, cudaStream_t stream) noexcept : device_(device), stream_(stream) {}
  StreamHandle(StreamHandle&& other) noexcept
      : device_(other.device_),
        stream_(other.stream_),
        owned_(std::exchange(other.owned_, false)) {}
  StreamHandle& operator=(StreamHandle&&) = delete;
  ~StreamHandle() {
    if (!owned_) return;
    try {
      const DeviceGuard guard(device_);
      try_sleep_until_idle(stream_);
      StreamScratch::give_back(StreamRef::cuda(device_.ordinal(), stream_));
      drop(cudaStreamDestroy(stream_));
    } catch (...) {  // The driver is gone, and the stream with it.
    }
  }
  cudaStream_t get() const noexcept { return stream_; }

 private:
  DeviceId device_;
  cudaStream_t stream_;
  bool owned_ = false;
};

// The interval of one task on a stream, between two timed events.
class Stretch {
 public:
  explicit Stretch(cudaStream_t stream)
      : stream_(stream), begin_(stream, OwnedEvent::Timing::kOn) {}

  void run(Stream::Task& task, StreamRef ref) noexcept {
    try {
      task(ref);
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
      if (result == cudaSuccess) drop(cudaEventElapsedTime(&elapsed_ms, begin_.get(), end_->get()));
    } else {
      try_sleep_until_idle(stream_);
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

// A worker sees completions: it sleeps on each task's end event. A host function of the stream
// could not replace it: it may not call CUDA, so `done` could not enqueue, and it is not called
// after a failure. Objects that a task holds live until the device has finished the task.
class CudaStream final : public StreamBackend {
 public:
  CudaStream(DeviceId device, StreamHandle stream, const Stream::Options& options)
      : device_(device),
        stream_(std::move(stream)),
        error_(std::make_shared<FirstError>()),
        worker_({options.name, options.cpu}),
        watcher_(std::make_shared<Watcher>(worker_)) {
    // Otherwise its first call would give this process a context on device 0 too.
    worker_.post([device]() noexcept { drop(cudaSetDevice(device.ordinal())); });
  }

  ~CudaStream() override { watcher_->close(); }  // Then the worker finishes, then the stream.

  void enqueue(Stream::Task task, Stream::Done done) override {
    const DeviceGuard guard(device_);
    auto stretch = std::make_shared<Stretch>(stream_.get());
    stretch->run(task, ref());
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
    const DeviceGuard guard(device_);
    cuda::enqueue_wait(ref(), event);
  }

  Event record() override {
    const DeviceGuard guard(device_);
    return Event(
        std::make_shared<CudaEvent>(OwnedEvent(stream_.get(), OwnedEvent::Timing::kOff), watcher_));
  }

  void synchronize() override {
    SLUICEWAY_CHECK(
        !worker_.is_current(),
        "stream: synchronize() was called by a callback of the same stream, which would "
        "wait for itself; call it on another thread");
    const auto completions = std::make_shared<HostEvent>();
    worker_.post([completions] { completions->set(); });
    completions->wait();
    error_->rethrow();
    const DeviceGuard guard(device_);
    sleep_until_idle(stream_.get());
  }

  DeviceId device() const noexcept override { return device_; }
  bool waits_on_device() const noexcept override { return true; }

 private:
  StreamRef ref() const noexcept { return StreamRef::cuda(device_.ordinal(), stream_.get()); }

  DeviceId device_;
  StreamHandle stream_;
  std::shared_ptr<FirstError> error_;
  Worker worker_;
  std::shared_ptr<Watcher> watcher_;
};

}  // namespace

std::unique_ptr<StreamBackend> make_owned_stream(DeviceId device, const Stream::Options& options) {
  check_device(device);
  StreamHandle stream = StreamHandle::create(device, options.priority);
  if (!options.own_thread) return std::make_unique<CudaStream>(device, std::move(stream), options);
  const auto shared = std::make_shared<const StreamHandle>(std::move(stream));
  // As in CudaStream's worker: otherwise its first call would give this process a context on device
  // 0 too.
  const auto select = [device]() noexcept { drop(cudaSetDevice(device.ordinal())); };
  return std::make_unique<WorkerStream>(
      options, WorkerTarget{StreamRef::cuda(device.ordinal(), shared->get()), select,
                            [shared] { sleep_until_idle(shared->get()); }});
}

std::unique_ptr<StreamBackend> make_borrowed_stream(StreamRef stream) {
  const DeviceId device = stream.device();
  check_one_stream("stream", stream);
  check_device(device);
  return std::make_unique<CudaStream>(
      device, StreamHandle(device, static_cast<cudaStream_t>(stream.native())),
      Stream::Options{"borrowed", -1});
}

void wait_for(StreamRef stream) {
  const DeviceGuard guard(stream.device());
  sleep_until_idle(static_cast<cudaStream_t>(stream.native()));
}

// The device of `stream` is current. This function keeps D1 (stream.h): it passes to the device
// only events that the device reaches by itself.
void enqueue_wait(StreamRef stream, const Event& event) {
  if (const auto* recorded = dynamic_cast<const CudaEvent*>(event.state().get())) {
    SLUICEWAY_CUDA_CHECK(
        cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.native()), recorded->get(), 0));
    return;
  }
  SLUICEWAY_CHECK(event.happened(), "stream: a stream of ", to_string(stream.device()),
                  " cannot wait for a host event that has not happened; wait for it on this thread "
                  "first");
}

}  // namespace sluiceway::cuda
