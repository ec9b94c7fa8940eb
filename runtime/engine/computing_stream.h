// The framework's stream on which an engine enqueues its work, the order between two such streams,
// and the scratch that each computing stream keeps on a device.
//
// Autograd runs each part of a backward on the stream of its forward, and step() may be called on
// yet another stream. An engine then uses shared memory (scratch, cores, scans) on several streams.
// So when a call arrives on another stream than the last one, the new stream waits for an event
// recorded on the old one. The work of an engine thus runs in the order of its calls, and an event
// recorded on the last stream comes after all of it.
//
// An engine computes on the framework's stream and on one of its own, which applies updates or
// rounds gradients. On a CUDA device each of the two keeps scratch outside the engine's buffers.
// Each further stream of the framework gets scratch with its first kernel; no budget counts that.
//
// Thread safety: one thread at a time calls; acquire() from any thread.
// Lifetime:      the lanes, and every stream passed in, outlive it.
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

  // Returns the stream of the last call; before the first call, the device's default stream.
  StreamRef ref() const noexcept { return ref_; }

  // Sends later work of the engine to `compute`, after all work already on the current stream.
  void move_to(StreamRef compute);
  // Same for step(), if a stream is given; on that stream the caller treats updates as done.
  void move_to_step(const std::optional<StreamRef>& compute);

  // Makes `compute` acquire a key of the executor, and also the stream of the last step().
  void acquire(int key, StreamRef compute);

  Event reached();  // Completes when all work enqueued on the stream so far is done.

 private:
  EngineLanes& lanes_;
  StreamRef ref_;
  std::mutex mutex_;
  std::optional<StreamRef> stepped_;  // The stream of the last step(); guarded by mutex_.
  bool was_used_ = false;
};

inline constexpr int kComputingStreams = 2;

// Bytes on the device tier; the engine reserves them, and the streams allocate them.
constexpr std::uint64_t engine_scratch_bytes(DeviceId device) noexcept {
  return cuda::stream_scratch_bytes(device, kComputingStreams);
}

// Allocates that scratch for the engine's own stream now, so that no step does: an allocation may
// wait until the device is idle. The framework's stream becomes known with the first gradient and
// gets its scratch then. OutOfMemory: the device has no memory for it.
void prepare_own_stream(Stream& own);

}  // namespace sluiceway
