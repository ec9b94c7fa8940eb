// The framework's stream that an engine enqueues its work on, the order between two of them, and
// what each stream that computes keeps of a device.
//
// Autograd runs each part of a backward on the stream of its forward, and step() may be called on
// another one again. What an engine shares between calls (scratch, cores, scans) is then used on
// several streams. So where a call comes on another stream than the last one, the new stream waits
// for an event that is recorded on the old one. Work of an engine is thus in the order of its
// calls, and what is recorded on the last stream comes after all of it.
//
// An engine computes on the framework's stream and on one of its own, which applies updates or
// rounds gradients. Each of the two keeps scratch of a CUDA device that no buffer of the engine is.
// Each further stream of the framework gets scratch with its first kernel, which no budget counts.
//
// Thread safety: one thread at a time calls, but acquire() from any thread.
// Lifetime:      the lanes, and every stream that was given, outlive it.
// Errors:        CudaError: the device has failed. InvalidArgument: a stream of another device.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "kernels/base/stream_ref.h"
#include "kernels/cuda/prepare_stream.h"
#include "kernels/cuda/stream_scratch_bytes.h"
#include "runtime/device/event.h"
#include "runtime/device/stream.h"
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

inline constexpr int kComputingStreams = 2;

// Device tier; the engine reserves it, and the streams allocate it.
constexpr std::uint64_t engine_scratch_bytes(DeviceId device) noexcept {
  return cuda::stream_scratch_bytes(device, kComputingStreams);
}

// Allocates that scratch for the engine's own stream, so that no step does: to allocate may wait
// until the device is idle. The framework's stream is known, and gets its own, with the first
// gradient. OutOfMemory: the device refuses it.
void prepare_own_stream(Stream& own);

}  // namespace sluiceway
