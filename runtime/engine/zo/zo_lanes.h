// The lanes of the zeroth-order engine.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/engine/engine_lanes.h"

namespace sluiceway::zo_lanes {

//   free     a weight to be read waits, without a thread, for a staging slot
//   disk     it is read into the slot; several requests at a time
//   staged   it waits, without a thread, for its read, if any, and for an arrival slot
//   h2d      it arrives
//   ready    it waits, without a thread, for its arrival and for a pair of slots
//   perturb  its two copies are made, and steps are written into it; one lane or several
//   down     it goes back to host memory, only where steps are written into weights
inline constexpr LaneId kFree = 0, kDisk = 1, kStaged = 2, kH2d = 3, kReady = 4, kPerturb = 5;
inline constexpr LaneId down(int perturb_lanes) noexcept { return kPerturb + perturb_lanes; }
inline constexpr LanePlan kPlan{.gather_before = std::nullopt, .device_lane = kPerturb};

struct Depths {  // Hops in flight.
  int free = 1, reads = 1, staged = 1, ready = 1;
  int perturb_lanes = 1;
  bool goes_down = false;
};

inline std::vector<LaneSpec> specs(const Depths& depths, int device_cpu, int lane_cpu) {
  using enum LaneSpec::Runs;
  using enum LinkDirection;
  std::vector<LaneSpec> all = {{"free", kOnHost, std::max(1, depths.free), lane_cpu},
                               {"disk", kOnHost, std::max(1, depths.reads), lane_cpu},
                               {"staged", kOnHost, std::max(1, depths.staged), lane_cpu},
                               {"h2d", kOnDevice, 2, lane_cpu, false, kHostToDevice},
                               {"ready", kOnHost, std::max(1, depths.ready), lane_cpu}};
  for (int i = 0; i < depths.perturb_lanes; ++i) {
    all.push_back(
        {"perturb" + (i == 0 ? std::string() : std::to_string(i)), kOnDevice, 1, device_cpu, true});
  }
  if (depths.goes_down) all.push_back({"down", kOnDevice, 2, lane_cpu, false, kDeviceToHost});
  return all;
}

}  // namespace sluiceway::zo_lanes
