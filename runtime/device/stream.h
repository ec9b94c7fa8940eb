// An ordered queue of device work; what is enqueued runs in order, asynchronously to the caller.
//
// Three kinds behind one interface:
//   owned     host device: one worker thread, first in first out. CUDA: a cudaStream_t of ours.
//   borrowed  the stream that the framework computes on. The host device has none, since torch
//             runs on the calling thread: work enqueued here runs at once, on that thread.
//   host      a worker thread in every build, for work that runs on the processor (AdamW on cores).
//
// A stream of a device waits on the device, and only for events that streams of devices have
// recorded. It never waits for a thread of the host:
//
//   D1  Whatever a stream of a device has been given ends by itself, whatever the threads of the
//       host do. The driver loads kernels at their first launch, allocates, frees and page-locks
//       under a lock, and may wait for an idle device meanwhile: a stream that waited for a thread
//       would wait for ever as soon as that thread needed the driver.
//
// Where work must follow something that the host still has to do, the thread that enqueues waits
// for that first (Event::wait()). A paced link sleeps in its lane's own thread (own_thread).
//
// Ownership:     movable; ~Stream() finishes the work already enqueued, then joins its thread.
// Thread safety: every call from any thread.
// Errors:        what a task throws goes to its `done`; a task without one poisons the stream, and
//                synchronize() rethrows it once.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "kernels/base/device_id.h"
#include "kernels/base/stream_ref.h"
#include "runtime/device/event.h"

namespace sluiceway {

// When a task ran, in microseconds of the trace's clock (trace.h: now_us()), and what it threw.
struct Completion {
  double begin_us = 0;
  double end_us = 0;
  std::exception_ptr error;
};

class StreamBackend;

class Stream {
 public:
  // Whose work a CUDA device starts first, where that of several streams is ready.
  enum class Priority : std::uint8_t { kDefault, kHigh };

  struct Options {
    std::string name;  // Of the thread and of the trace row; at most 15 characters are kept.
    int cpu = -1;      // Processor to pin the worker thread to; -1 leaves it free.
    Priority priority = Priority::kDefault;  // Of an owned stream.
    // Of an owned stream of a CUDA device: tasks run on the stream's own thread, one after another,
    // and each is waited for. For tasks that sleep, as copies over a paced link do.
    bool own_thread = false;
    // Of a host stream: so many tasks run beside each other, begun in their order.
    int threads = 1;
  };
  using Task = std::function<void(StreamRef)>;
  using Done = std::function<void(const Completion&)>;

  static Stream owned(DeviceId device, Options options);
  static Stream borrowed(StreamRef framework_stream);
  static Stream host(Options options);
  static Stream over(std::unique_ptr<StreamBackend> backend);  // stream_backend.h: another kind.

  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // Host kinds run `task` on the worker (borrowed: at once, on this thread). CUDA calls `task` on
  // this thread, which launches on the given stream; with own_thread on the worker.
  void enqueue(Task task);

  // As enqueue; `done` runs when the work has finished, on a thread of the stream's choosing. It
  // must not block or throw, and may enqueue on any stream.
  void enqueue(Task task, Done done);

  // Work enqueued later starts after `event`. On a CUDA device InvalidArgument for an event of the
  // host that has not happened (D1).
  void wait(const Event& event);
  Event record();  // Happens when everything enqueued so far has finished.
  void synchronize();

  DeviceId device() const noexcept;

  // Whether wait() for an event of `other` costs no thread: both are streams of one device, which
  // waits by itself.
  bool device_waits_for(const Stream& other) const noexcept;

 private:
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// Blocks until the work that `stream` has been given is done, and sleeps meanwhile; nothing to do
// on the host. CudaError: the device has failed.
void wait_for(StreamRef stream);

// For a task: what it gives `stream` from now on starts after `event`. On the host device the
// calling thread waits. Errors as Stream::wait().
void enqueue_wait(StreamRef stream, const Event& event);

// Makes `device` current on this thread for the guard's lifetime; nothing to do on the host.
class DeviceGuard {
 public:
  explicit DeviceGuard(DeviceId device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int previous_ = -1;
};

}  // namespace sluiceway
