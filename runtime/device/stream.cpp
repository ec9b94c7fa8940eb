#include "runtime/device/stream.h"

#include <utility>

#include "runtime/device/cuda_backend.h"
#include "runtime/device/host_stream.h"

namespace sluiceway {

struct Stream::Impl {
  std::unique_ptr<StreamBackend> backend;
};

Stream::Stream(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Stream Stream::owned(DeviceId device, Options options) {
  if (device.is_host()) return host(std::move(options));
  return over(cuda::make_owned_stream(device, options));
}

Stream Stream::borrowed(StreamRef framework_stream) {
  if (framework_stream.is_host()) {
    return over(std::make_unique<InlineStream>());
  }
  return over(cuda::make_borrowed_stream(framework_stream));
}

Stream Stream::host(Options options) {
  if (options.threads > 1) return over(std::make_unique<TeamStream>(options));
  return over(std::make_unique<WorkerStream>(std::move(options)));
}

Stream Stream::over(std::unique_ptr<StreamBackend> backend) {
  return Stream(std::make_unique<Impl>(Impl{std::move(backend)}));
}

void Stream::enqueue(Task task) { impl_->backend->enqueue(std::move(task), nullptr); }

void Stream::enqueue(Task task, Done done) {
  impl_->backend->enqueue(std::move(task), std::move(done));
}

void Stream::wait(const Event& event) { impl_->backend->wait(event); }

Event Stream::record() { return impl_->backend->record(); }

void Stream::synchronize() { impl_->backend->synchronize(); }

DeviceId Stream::device() const noexcept { return impl_->backend->device(); }

bool Stream::device_waits_for(const Stream& other) const noexcept {
  return impl_->backend->waits_on_device() && other.impl_->backend->waits_on_device() &&
         device() == other.device();
}

void wait_for(StreamRef stream) {
  if (!stream.is_host()) cuda::wait_for(stream);
}

void enqueue_wait(StreamRef stream, const Event& event) {
  if (stream.is_host()) return event.wait();
  cuda::enqueue_wait(stream, event);
}

DeviceGuard::DeviceGuard(DeviceId device) {
  if (device.is_host()) return;
  const int previous = cuda::select_device(device.ordinal());
  if (previous != device.ordinal()) previous_ = previous;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cuda::restore_device(previous_);
}

}  // namespace sluiceway
