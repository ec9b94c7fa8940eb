// The lanes that a payload passes, in this order, and the orders in which a lane may serve.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sluiceway {

enum class Lane : std::uint8_t { kD2h, kHost, kH2d, kApply };
inline constexpr std::size_t kLaneCount = 4;
inline constexpr std::array<Lane, kLaneCount> kLanes = {Lane::kD2h, Lane::kHost, Lane::kH2d,
                                                        Lane::kApply};
constexpr std::size_t index(Lane lane) noexcept { return static_cast<std::size_t>(lane); }
std::string_view to_string(Lane lane) noexcept;  // "d2h", "host", "h2d", "apply"

// Which ready payload a free lane takes next (docs/schedule.md section 2).
enum class Order : std::uint8_t {
  kBarrier,  // Arrival order; host work starts when every payload of the step is on the host, and
             // the next forward when all are applied (ZeRO-Offload).
  kFcfs,     // Arrival order, layer by layer.
  kPaper,    // LSP-Offload: arrival order, then last come first served from the transition layer.
  kEdf,      // Earliest deadline first: the layer that the next forward needs first.
};
std::string_view to_string(Order order) noexcept;  // "barrier", "fcfs", "paper", "edf"
Order parse_order(std::string_view name);          // InvalidArgument names the four.

}  // namespace sluiceway
