// Device memory that streams keep besides what their callers give them (stream_scratch.cuh). For
// code that counts bytes, in every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/device_id.h"

namespace sluiceway::cuda {

inline constexpr std::size_t kStreamScratchBytes = std::size_t{4} << 20;

// Returns the bytes for `streams` streams; 0 on the host device, which needs no scratch.
constexpr std::uint64_t stream_scratch_bytes(DeviceId device, int streams) noexcept {
  return device.is_host() ? 0 : static_cast<std::uint64_t>(streams) * kStreamScratchBytes;
}

}  // namespace sluiceway::cuda
