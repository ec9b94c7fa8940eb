#include "runtime/engine/offload/weight_park.h"

#include <algorithm>

#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

constexpr std::size_t kAlignment = 64;  // Of each piece: a cache line.

}  // namespace

WeightPark::WeightPark(Budget& budget, const ChunkPlan& plan, std::span<const DType> weights,
                       std::uint64_t most)
    : pieces_(plan.chunks().size()) {
  const auto bytes_of = [&](const ChunkPiece& piece) {
    return static_cast<std::size_t>(piece.elems) *
           size_bytes(weights[static_cast<std::size_t>(piece.tensor)]);
  };
  const std::uint64_t left = budget.limit(Tier::kHost) - budget.used(Tier::kHost);
  const std::uint64_t room = std::min(most, left);
  std::size_t taken = 0, chunks = 0;
  for (const PlannedChunk& chunk : plan.chunks()) {
    std::size_t needed = 0;
    for (const ChunkPiece& piece : chunk.pieces) needed += round_up(bytes_of(piece), kAlignment);
    if (taken + needed > room) break;
    taken += needed;
    ++chunks;
  }
  if (taken == 0) return;
  memory_ = Buffer(budget, Tier::kHost, DeviceId::host(), taken, "weights that wait", Fill::kNone);
  std::span<std::byte> rest = memory_.as<std::byte>();
  for (std::size_t c = 0; c < chunks; ++c) {
    for (const ChunkPiece& piece : plan.chunks()[c].pieces) {
      pieces_[c].push_back(rest.first(bytes_of(piece)));
      rest = rest.subspan(round_up(bytes_of(piece), kAlignment));
    }
  }
}

}  // namespace sluiceway
