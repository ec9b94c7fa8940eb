// The lanes of the subspace engine, in the order in which a core passes them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/engine_lanes.h"

namespace sluiceway::subspace_lanes {

inline constexpr LaneId kD2h = 0, kHost = 1, kH2d = 2, kApply = 3;
inline constexpr LanePlan kPlan{.gather_before = kHost, .device_lane = kApply};

inline std::vector<LaneSpec> specs(int device_cpu, int lane_cpu, int host_threads) {
  using enum LaneSpec::Runs;
  using enum LinkDirection;
  return {{"d2h", kOnDevice, 1, lane_cpu, false, kDeviceToHost},
          {"host", kOnHost, host_threads, lane_cpu, false, std::nullopt, host_threads},
          {"h2d", kOnDevice, 1, lane_cpu, false, kHostToDevice},
          {"apply", kOnDevice, 1, device_cpu, true}};
}

}  // namespace sluiceway::subspace_lanes
