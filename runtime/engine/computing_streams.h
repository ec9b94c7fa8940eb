// Streams that compute for an engine: the one of the framework, and one of its own, which applies
// updates or rounds gradients. Each keeps scratch of a CUDA device that no buffer of the engine is.
#pragma once

#include <cstdint>

#include "kernels/base/device_id.h"
#include "kernels/cuda/prepare_stream.h"
#include "kernels/cuda/stream_scratch_bytes.h"
#include "runtime/device/stream.h"

namespace sluiceway {

inline constexpr int kComputingStreams = 2;

// Device tier; the engine reserves it, and the streams allocate it.
constexpr std::uint64_t engine_scratch_bytes(DeviceId device) noexcept {
  return cuda::stream_scratch_bytes(device, kComputingStreams);
}

// Allocates that scratch for the engine's own stream, so that no step does: to allocate may wait
// until the device is idle. The framework's stream is known, and gets its own, with the first
// gradient. OutOfMemory: the device refuses it.
inline void prepare_own_stream(Stream& own) {
  if (own.device().is_host()) return;
  own.enqueue([](StreamRef stream) { cuda::prepare_stream(stream); });
  own.synchronize();
}

}  // namespace sluiceway
