// Streams that compute for an engine: the one of the framework, and one of its own, which applies
// updates or rounds gradients. Each keeps scratch of a CUDA device that no buffer of the engine is.
#pragma once

#include <cstdint>

#include "kernels/base/device_id.h"
#include "kernels/cuda/stream_scratch_bytes.h"

namespace sluiceway {

inline constexpr int kComputingStreams = 2;

// Device tier; the engine reserves it, and the streams allocate it.
constexpr std::uint64_t engine_scratch_bytes(DeviceId device) noexcept {
  return cuda::stream_scratch_bytes(device, kComputingStreams);
}

}  // namespace sluiceway
