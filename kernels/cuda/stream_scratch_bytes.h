// What streams that compute on a CUDA device keep of its memory, beside what their callers give
// them (stream_scratch.cuh): for who counts bytes, in every build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/base/device_id.h"

namespace sluiceway::cuda {

inline constexpr std::size_t kStreamScratchBytes = std::size_t{4} << 20;

// Of so many of them; none on the host device, which has no streams of its own.
constexpr std::uint64_t stream_scratch_bytes(DeviceId device, int streams) noexcept {
  return device.is_host() ? 0 : static_cast<std::uint64_t>(streams) * kStreamScratchBytes;
}

}  // namespace sluiceway::cuda
