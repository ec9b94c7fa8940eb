// The lanes of the offload engine, in the order in which gradients and states pass them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine_lanes.h"

namespace sluiceway::offload_lanes {

//   d2h     copies a piece of a gradient off the device in the wire type, and scans it
//   decompress  decompresses a core into the pieces of its extents, or only scans it
//   spill   writes a gradient to its extent
//   fetch   reads states and extents of a chunk
//   host    AdamW, for which it also decompresses a core; the norm of a sum of extents
//   store   writes states beside the last commit
//   h2d     copies the weight to the device
inline constexpr LaneId kD2h = 0, kDecompress = 1, kSpill = 2, kFetch = 3, kHost = 4, kStore = 5,
                        kH2d = 6;
// Empty: updates are sent when a step is decided, with every gradient on its drive, or can be taken
// back until then. No lane does work of the device, so a forward stalls while it waits for a weight
// that crosses.
inline constexpr LanePlan kPlan{};
// The deadline of gradients on their way out. No forward needs one of them before the others, and
// on a CUDA device a later one may not be there yet when an earlier one is.
inline constexpr std::uint64_t kAsTheyCame = 0;
inline constexpr int kDepth = 16;  // Chunks with requests in flight, for each lane of a drive.

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
