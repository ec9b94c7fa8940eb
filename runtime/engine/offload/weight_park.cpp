#include "runtime/engine/offload/weight_park.h"

#include <algorithm>

#include "runtime/device/device_memory.h"

namespace sluiceway {
namespace {

constexpr std::size_t kAlignment = 64;  // Alignment of each piece: a cache line.

std::size_t bytes_of(const ChunkPiece& piece, std::span<const DType> weights) {
  return static_cast<std::size_t>(piece.elems) *
         size_bytes(weights[static_cast<std::size_t>(piece.tensor)]);
}

bool is_away(const ChunkPiece& piece, std::span<const std::uint8_t> away) {
  return !away.empty() && away[static_cast<std::size_t>(piece.tensor)] != 0;
}

}  // namespace

WeightPark::Fit WeightPark::fit(const ChunkPlan& plan, std::span<const DType> weights,
                                std::span<const std::uint8_t> away, std::uint64_t room) {
  Fit taken;
  for (const PlannedChunk& chunk : plan.chunks()) {
    std::uint64_t needed = 0;
    for (const ChunkPiece& piece : chunk.pieces) {
      if (is_away(piece, away)) continue;
      needed += round_up(bytes_of(piece, weights), kAlignment);
    }
    if (taken.bytes + needed > room) break;
    taken.bytes += needed;
    ++taken.chunks;
  }
  return taken;
}

WeightPark::WeightPark(Budget& budget, const ChunkPlan& plan, std::span<const DType> weights,
                       std::span<const std::uint8_t> away, std::uint64_t most)
    : pieces_(plan.chunks().size()) {
  const std::uint64_t left = budget.limit(Tier::kHost) - budget.used(Tier::kHost);
  const Fit taken = fit(plan, weights, away, std::min(most, left));
  if (taken.bytes == 0) return;
  memory_ =
      Buffer(budget, Tier::kHost, DeviceId::host(), taken.bytes, "parked weights", Fill::kNone);
  std::span<std::byte> rest = memory_.as<std::byte>();
  for (std::size_t c = 0; c < taken.chunks; ++c) {
    for (const ChunkPiece& piece : plan.chunks()[c].pieces) {
      if (is_away(piece, away)) continue;
      pieces_[c].push_back(rest.first(bytes_of(piece, weights)));
      rest = rest.subspan(round_up(bytes_of(piece, weights), kAlignment));
    }
  }
}

}  // namespace sluiceway
