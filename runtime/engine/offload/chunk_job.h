// One chunk on its way through the lanes: its memory, cut into streams, and AdamW over it.
//
//   exp_avg, exp_avg_sq, master     f32, where the chunk's states travel
//   gradients                       one for each extent, or filled in another way
//   copy                            weights in the model's type, if it is not f32, or for a card
//
// In place (state_stream.h), states and extents are in the memory of the store, and only the rest
// is in the lease.
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
  static constexpr std::size_t kMaster = 2;  // Index among the states.

  // `states`: indices of the states that travel.
  ChunkJob(int number, const PlannedChunk& of, ChunkUpdate with, std::vector<std::size_t> states);

  std::size_t bytes(const StateStream::Types& types) const;         // Size of its lease.
  std::size_t extent_bytes(const StateStream::Types& types) const;  // Size of one gradient.
  std::size_t state_bytes() const;                                  // Size of one state.
  std::size_t gradient_count() const noexcept {
    return regions + (update.gathered.empty() ? 0 : 1);
  }
  void cut(PinnedPool::Lease whole, const StateStream::Types& types);

  // Scans the sum of the gradients, into one result per piece.
  void scan_sums(const StateStream::Types& types, std::span<ScanResult> results) const;

  StateStream::PieceState state_of(const ChunkPiece& piece) const;
  // Returns the memory of a piece's weight in the type that the model computes with.
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

  // ---- For the pieces that have a gradient ----
  void adam(const StateStream::Types& types);
  void round_weights(const StateStream::Types& types);  // From their masters.
  void hand_on(const ChunkUpdate::Emit& take, const StateStream::Types& types,
               StreamRef stream) const;

  int index;
  const PlannedChunk& chunk;
  ChunkUpdate update;
  std::vector<std::size_t> streams;
  bool filled;                       // `update.fill` writes the gradient.
  std::size_t regions;               // Gradients, without a gathered one.
  Version version = Version::kLive;  // kStaged: written last, staged or committed.
  std::optional<PinnedPool::Lease> lease;
  std::array<std::span<std::byte>, kStateStreams> state;
  std::vector<std::span<std::byte>> gradients;
  std::span<std::byte> copy;
  std::size_t copy_width = 0;  // Bytes of an element of `copy`.
};

}  // namespace sluiceway
