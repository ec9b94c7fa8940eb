// An ordered queue of device work; it runs in order, asynchronously to the caller.
//
// Three kinds behind one interface:
//   owned     host device: one worker thread, first in first out. CUDA: our own cudaStream_t.
//   borrowed  the stream on which the framework computes. The host device has none, since torch
//             runs on the calling thread: work enqueued here runs at once, on that thread.
//   host      a worker thread in every build, for work on the processor (AdamW on cores).
//
// A device's stream waits on the device, and only for events recorded by streams of devices. It
// never waits for a thread of the host:
//
//   D1  All work of a device's stream ends by itself, whatever the threads of the host do. The
//       driver loads kernels at their first launch, allocates, frees and page-locks under a lock,
//       and may wait for an idle device meanwhile: a stream that waited for a thread would wait
//       forever as soon as that thread needed the driver.
//
// If work must follow something that the host still has to do, the thread that enqueues the work
// waits for that first (Event::wait()). A paced link sleeps in its lane's own thread (own_thread).
//
// Ownership:     movable; ~Stream() finishes the enqueued work, then joins its thread.
// Thread safety: every call from any thread.
// Errors:        an exception in a task goes to its `done`; without a `done` it poisons the stream,
//                and synchronize() rethrows it once.
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

// When a task ran, in microseconds of the trace's clock (trace.h: now_us()), and its exception.
struct Completion {
  double begin_us = 0;
  double end_us = 0;
  std::exception_ptr error;
};

class StreamBackend;

class Stream {
 public:
  // Decides which stream's work a CUDA device starts first if several have work ready.
  enum class Priority : std::uint8_t { kDefault, kHigh };

  struct Options {
    std::string name;  // Names thread and trace row; at most 15 characters are kept.
    int cpu = -1;      // Processor to pin the worker thread to; -1 leaves it free.
    Priority priority = Priority::kDefault;  // For an owned stream.
    // For an owned stream of a CUDA device: tasks run on the stream's own thread, one after
    // another, and the thread waits for each. For tasks that sleep, such as copies over a paced
    // link.
    bool own_thread = false;
    // For a host stream: how many tasks may run at once; they start in order.
    int threads = 1;
  };
  using Task = std::function<void(StreamRef)>;
  using Done = std::function<void(const Completion&)>;

  static Stream owned(DeviceId device, Options options);
  static Stream borrowed(StreamRef framework_stream);
  static Stream host(Options options);
  // For other kinds, see stream_backend.h.
  static Stream over(std::unique_ptr<StreamBackend> backend);

  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  ~Stream();

  // Host kinds run `task` on the worker (borrowed: at once, on this thread). CUDA calls `task`,
  // which launches on the given stream, on this thread, or with own_thread on the worker.
  void enqueue(Task task);

  // Also runs `done` when the work has finished, on a thread that the stream chooses. `done` must
  // not block or throw, and may enqueue on any stream.
  void enqueue(Task task, Done done);

  // Work enqueued later starts after `event`. On a CUDA device throws InvalidArgument for a host
  // event that has not happened (D1).
  void wait(const Event& event);
  Event record();  // Happens when everything enqueued so far has finished.
  void synchronize();

  DeviceId device() const noexcept;

  // True if wait() for an event of `other` occupies no thread: both are streams of one device,
  // which waits by itself.
  bool device_waits_for(const Stream& other) const noexcept;

 private:
  struct Impl;
  explicit Stream(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

// Blocks until `stream` has finished all its work, and sleeps meanwhile; does nothing on the host.
// Throws CudaError if the device has failed.
void wait_for(StreamRef stream);

// For tasks: work given to `stream` from now on starts after `event`. On the host device the
// calling thread waits. Errors as in Stream::wait().
void enqueue_wait(StreamRef stream, const Event& event);

// Makes `device` current on this thread for the guard's lifetime; does nothing on the host.
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
