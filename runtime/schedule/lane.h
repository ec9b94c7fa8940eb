// Lanes that payloads pass, and the orders in which a lane may serve.
//
// What the lanes are is the engine's choice: the executor gets a list of them and knows a lane by
// its place in that list.
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
  int depth = 1;             // Hops in flight: 1 for compute, the queue depth for a disk.
  int trace_row = 0;         // Of Executor::Config::trace.
};

// What the rules of a step need to know of the lanes; the executor and the cost model share it.
struct LanePlan {
  // Where work on what has arrived begins, as AdamW on the host does. Under kBarrier the payloads
  // of a step gather before their first hop in this lane or a later one; in the cost model an exact
  // norm delays it. Empty: nothing gathers.
  std::optional<LaneId> gather_before = std::nullopt;
  // The lane that works for the device, as applying updates does and copying them does not: a wait
  // while it is busy is no stall, and it has no part in the transition layer. Empty: every wait is
  // a stall.
  std::optional<LaneId> device_lane = std::nullopt;
};

// Which ready payload a free lane takes next.
enum class Order : std::uint8_t {
  kBarrier,  // Arrival order; work on what arrived starts when every payload of the step has, and
             // the next forward when all are done (ZeRO-Offload).
  kFcfs,     // Arrival order, payload by payload.
  kPaper,    // LSP-Offload: arrival order, then last come first served below the transition.
  kEdf,      // Earliest deadline first: the payload that the next forward needs first.
};
std::string_view to_string(Order order) noexcept;  // "barrier", "fcfs", "paper", "edf"
Order parse_order(std::string_view name);          // InvalidArgument names the four.

}  // namespace sluiceway
