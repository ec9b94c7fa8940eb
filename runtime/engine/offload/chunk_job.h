// One chunk on its way through the lanes: its memory, cut into streams, and AdamW over it.
//
//   exp_avg, exp_avg_sq, master     f32, where the chunk's states travel
//   gradients                       of each extent, or of what else fills them
//   copy                            weights of types other than f32, as the model computes
//
// Thread safety: one hop at a time works on a job.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/elements.h"
#include "runtime/engine/offload/state_stream.h"

namespace sluiceway {

struct ChunkJob {
  static constexpr std::size_t kMaster = 2;  // Of the states.

  // `states`: those that travel.
  ChunkJob(int number, const PlannedChunk& of, ChunkUpdate with, std::vector<std::size_t> states);

  std::size_t bytes(const StateStream::Types& types) const;         // Of its lease.
  std::size_t extent_bytes(const StateStream::Types& types) const;  // Of one gradient.
  std::size_t state_bytes() const;                                  // Of one state.
  std::size_t gradient_count() const noexcept {
    return regions + (update.gathered.empty() ? 0 : 1);
  }
  void cut(PinnedPool::Lease whole, const StateStream::Types& types);

  StateStream::PieceState state_of(const ChunkPiece& piece) const;
  // Where the weight of a piece is, as the model computes with it.
  std::span<std::byte> weight_of(const ChunkPiece& piece, DType dtype) const;

  template <typename G>
  std::vector<std::span<const G>> gradients_of(const ChunkPiece& piece) const {
    std::vector<std::span<const G>> parts;
    for (const std::span<std::byte> gradient : gradients) {
      parts.push_back(
          elements<G>(std::span<const std::byte>(gradient))
              .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems)));
    }
    return parts;
  }

  // ---- Of the pieces that have a gradient ----
  void adam(const StateStream::Types& types);
  void round_weights(const StateStream::Types& types);  // Of their masters.
  void hand_on(const ChunkUpdate::Emit& take, const StateStream::Types& types,
               StreamRef stream) const;

  int index;
  const PlannedChunk& chunk;
  ChunkUpdate update;
  std::vector<std::size_t> streams;
  std::size_t regions;               // Gradients that lie in its lease.
  Version version = Version::kLive;  // kStaged: what was written last, staged or not.
  std::optional<PinnedPool::Lease> lease;
  std::array<std::span<std::byte>, kStateStreams> state;
  std::vector<std::span<std::byte>> gradients;
  std::span<std::byte> copy;
};

}  // namespace sluiceway
