// The framework's stream that an engine enqueues its work on, and the order between two of them.
//
// Autograd runs each part of a backward on the stream of its forward, and step() may be called on
// another one again. What an engine shares between calls (scratch, cores, scans) is then used on
// several streams. So where a call comes on another stream than the last one, the new stream waits
// for an event that is recorded on the old one. Work of an engine is thus in the order of its
// calls, and what is recorded on the last stream comes after all of it.
//
// Each further stream of the framework gets scratch of its own with its first kernel, which the
// budget of the engine does not count (computing_streams.h).
//
// Thread safety: one thread at a time calls, but acquire() from any thread.
// Lifetime:      the lanes, and every stream that was given, outlive it.
// Errors:        CudaError: the device has failed. InvalidArgument: a stream of another device.
#pragma once

#include <mutex>
#include <optional>

#include "kernels/base/stream_ref.h"
#include "runtime/device/event.h"
#include "runtime/engine/engine_lanes.h"

namespace sluiceway {

class ComputingStream {
 public:
  explicit ComputingStream(EngineLanes& lanes) noexcept;

  // That of the last call; before the first call, the device's default stream.
  StreamRef ref() const noexcept { return ref_; }

  // Work of the engine goes to `compute` from now on, after all that is on the stream before it.
  void move_to(StreamRef compute);
  // The same for step(), where a stream is given; the caller takes updates for done on that one.
  void move_to_step(const std::optional<StreamRef>& compute);

  // `compute` acquires a key of the executor, and so does the stream of the last step().
  void acquire(int key, StreamRef compute);

  Event reached();  // Happens when all that the stream was given so far is done.

 private:
  EngineLanes& lanes_;
  StreamRef ref_;
  std::mutex mutex_;
  std::optional<StreamRef> stepped_;  // The stream of the last step(); guarded by mutex_.
  bool was_used_ = false;
};

}  // namespace sluiceway
