// The lanes that payloads pass, and the orders in which a lane may serve them.
//
// The engine chooses the lanes: the executor gets a list of them and knows a lane by its index.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/device/stream.h"

namespace sluiceway {

using LaneId = int;  // Index into Executor::Config::lanes.

struct LaneConfig {
  std::string name;          // For errors and the trace.
  Stream* stream = nullptr;  // Not owned; outlives the executor.
  int depth = 1;             // Hops in flight at most: 1 for compute, the queue depth for a disk.
  int trace_row = 0;         // In Executor::Config::trace.
};

// The facts about lanes that the rules of a step need; the executor and the cost model share it.
struct LanePlan {
  // The lane where work on arrived payloads starts, such as AdamW on the host. Under kBarrier the
  // payloads of a step gather before their first hop in this lane or a later one; in the cost model
  // an exact norm delays it. Empty: no gathering.
  std::optional<LaneId> gather_before = std::nullopt;
  // The lane that works for the device by applying updates; copies do not count. A wait while it is
  // busy is not a stall, and the transition layer ignores it. Empty: every wait is a stall.
  std::optional<LaneId> device_lane = std::nullopt;
};

// Decides which ready payload a free lane takes next.
enum class Order : std::uint8_t {
  kBarrier,  // Arrival order; work on payloads starts when all of the step have arrived, and the
             // next forward when all are done (ZeRO-Offload).
  kFcfs,     // Arrival order, payload by payload.
  kPaper,    // LSP-Offload: arrival order, then last come, first served below the transition.
  kEdf,      // Earliest deadline first: the payload that the next forward needs first.
};
std::string_view to_string(Order order) noexcept;  // "barrier", "fcfs", "paper", "edf"
Order parse_order(std::string_view name);          // InvalidArgument lists the four.

}  // namespace sluiceway
