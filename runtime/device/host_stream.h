// The streams that run on the processor; every build has them.
#pragma once

#include <memory>

#include "runtime/device/first_error.h"
#include "runtime/device/stream_backend.h"
#include "runtime/device/worker.h"

namespace sluiceway {

// First in, first out on a thread of its own. A task that throws does not stop those behind it.
//
// Errors: synchronize() throws InvalidArgument in a task of this stream: it would wait for itself.
class WorkerStream final : public StreamBackend {
 public:
  explicit WorkerStream(Stream::Options options);

  void enqueue(Stream::Task task, Stream::Done done) override;
  void wait(const Event& event) override;
  Event record() override;
  void synchronize() override;
  DeviceId device() const noexcept override { return DeviceId::host(); }

 private:
  std::shared_ptr<FirstError> error_;  // Shared with the jobs, which may outlive the stream.
  Worker worker_;
};

// Runs each task at once on the calling thread, so whatever was enqueued has already finished.
class InlineStream final : public StreamBackend {
 public:
  void enqueue(Stream::Task task, Stream::Done done) override;
  void wait(const Event& event) override { event.wait(); }
  Event record() override { return {}; }
  void synchronize() override { error_.rethrow(); }
  DeviceId device() const noexcept override { return DeviceId::host(); }

 private:
  FirstError error_;
};

}  // namespace sluiceway
