// The lanes of the offload engine, in the order in which gradients and states pass them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine_lanes.h"

namespace sluiceway::offload_lanes {

//   d2h     a piece of a gradient leaves the device, in 16 bit, scanned on the way
//   decompress  a gradient that crossed as a core becomes the pieces of its extents, or is scanned
//   spill   is written to its extent
//   fetch   states and extents of a chunk are read
//   host    AdamW, of a core that is decompressed for it too; the norm of a sum of extents
//   store   states are written beside the last commit
//   h2d     the weight goes to the device
inline constexpr LaneId kD2h = 0, kDecompress = 1, kSpill = 2, kFetch = 3, kHost = 4, kStore = 5,
                        kH2d = 6;
// Nothing gathers: updates are sent when a step is decided, with every gradient on its drive, or
// may be taken back until then. And none of the lanes works for the device: while a weight crosses,
// a forward that waits for it stalls.
inline constexpr LanePlan kPlan{};
// The deadline of gradients on their way out: nothing of a forward waits for one of them before the
// others, and of a CUDA device a later one may not be there yet when an earlier one is.
inline constexpr std::uint64_t kAsTheyCame = 0;
inline constexpr int kDepth = 16;  // Chunks of which each lane of a drive has requests in flight.

inline std::vector<LaneSpec> specs(int device_cpu, int lane_cpu, int host_threads) {
  using enum LaneSpec::Runs;
  return {{"d2h", kOnHost, 1, lane_cpu},
          {"decompress", kOnHost, kDepth, lane_cpu},
          {"spill", kOnHost, kDepth, lane_cpu},
          {"fetch", kOnHost, kDepth, lane_cpu},
          {"host", kOnHost, host_threads, lane_cpu, false, std::nullopt, host_threads},
          {"store", kOnHost, kDepth, lane_cpu},
          {"h2d", kOnDevice, 1, device_cpu, true, LinkDirection::kHostToDevice}};
}

}  // namespace sluiceway::offload_lanes
