// The lanes of the zeroth-order engine.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/engine_lanes.h"

namespace sluiceway::zo_lanes {

//   h2d      a weight arrives
//   ready    it waits, on no thread, for its arrival and for a pair of slots
//   perturb  its two copies are made; one lane or several
inline constexpr LaneId kH2d = 0, kReady = 1, kPerturb = 2;
inline constexpr LanePlan kPlan{.gather_before = std::nullopt, .device_lane = kPerturb};

inline std::vector<LaneSpec> specs(int perturb_lanes, int in_flight, int device_cpu, int lane_cpu) {
  using enum LaneSpec::Runs;
  std::vector<LaneSpec> all = {{"h2d", kOnDevice, 2, lane_cpu},
                               {"ready", kOnHost, in_flight, lane_cpu}};
  for (int i = 0; i < perturb_lanes; ++i) {
    all.push_back(
        {"perturb" + (i == 0 ? std::string() : std::to_string(i)), kOnDevice, 1, device_cpu});
  }
  return all;
}

}  // namespace sluiceway::zo_lanes
