// The four lanes of a weight's step, for the executor's experiment and benchmark.
#pragma once

#include <array>

#include "runtime/schedule/lane.h"

namespace sluiceway::experiment {

inline constexpr LaneId kD2hLane = 0, kHostLane = 1, kH2dLane = 2, kApplyLane = 3;
inline constexpr std::array<const char*, 4> kLaneNames = {"d2h", "host", "h2d", "apply"};
inline constexpr LanePlan kLanePlan{.gather_before = kHostLane, .device_lane = kApplyLane};

}  // namespace sluiceway::experiment
