// Streams whose tasks run on a thread of the processor; available in every build.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/device/first_error.h"
#include "runtime/device/stream_backend.h"
#include "runtime/device/worker.h"

namespace sluiceway {

// The launch target of a WorkerStream's tasks: none on the host, or the stream of a CUDA device.
struct WorkerTarget {
  StreamRef stream = StreamRef::host();
  std::function<void()> begin = [] {};  // Called once, before all tasks; must not throw.
  // Waits until the device has finished what a task launched.
  std::function<void()> finish = [] {};
};

// First in, first out, on a thread of its own. A task that throws does not stop later ones.
//
// Errors: synchronize() throws InvalidArgument in a task of this stream, where it would wait for
//         itself.
class WorkerStream final : public StreamBackend {
 public:
  explicit WorkerStream(Stream::Options options, WorkerTarget target = {});

  void enqueue(Stream::Task task, Stream::Done done) override;
  void wait(const Event& event) override;
  Event record() override;
  void synchronize() override;
  DeviceId device() const noexcept override { return target_->stream.device(); }

 private:
  // Shared with the jobs, which may outlive the stream.
  std::shared_ptr<const WorkerTarget> target_;
  std::shared_ptr<FirstError> error_;
  Worker worker_;
};

// Several threads: tasks start in order, each as soon as a thread is free. So a task must not
// depend on an earlier one, except through an event.
//
// Errors: as for WorkerStream.
class TeamStream final : public StreamBackend {
 public:
  explicit TeamStream(const Stream::Options& options);

  void enqueue(Stream::Task task, Stream::Done done) override;
  void wait(const Event& event) override;
  Event record() override;
  void synchronize() override;
  DeviceId device() const noexcept override { return DeviceId::host(); }

 private:
  struct Unfinished;

  std::shared_ptr<Unfinished> unfinished_;  // Shared with the jobs, which may outlive the stream.
  std::shared_ptr<FirstError> error_;
  Worker worker_;
};

// Runs each task at once on the calling thread, so everything enqueued has already finished.
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
