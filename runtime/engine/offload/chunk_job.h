// One chunk on its way through the lanes: its memory, cut into streams, and AdamW over it.
//
//   parts                           states, where they travel (state_form.h)
//   gradients                       one for each extent, or filled in another way
//   copy                            weights in the model's type, if it is not f32, or for a card
//
// In place (state_stream.h), states and extents are in the memory of the store, and only the rest
// is in the lease.
//
// Thread safety: one hop at a time works on a job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/elements.h"
#include "runtime/engine/offload/state_form.h"
#include "runtime/engine/offload/state_stream.h"

namespace sluiceway {

struct ChunkJob {
  // `states`: those that travel. `changes_in_place`: states and extents are in the store's memory.
  ChunkJob(int number, const PlannedChunk& of, ChunkUpdate with, StateSet states,
           const StateStream::Types& types, bool changes_in_place);

  std::size_t bytes(const StateStream::Types& types) const;         // Size of its lease.
  std::size_t extent_bytes(const StateStream::Types& types) const;  // Size of one gradient.
  std::size_t state_bytes() const;                                  // Of the parts that travel,
  std::size_t fetched_bytes() const;  // and of those that are fetched.
  // Whether a part that travels is read; one that is a copy of the others is only written.
  bool is_fetched(std::size_t part) const;
  std::size_t gradient_count() const noexcept {
    return regions + (update.gathered.empty() ? 0 : 1);
  }
  void cut(PinnedPool::Lease whole, const StateStream::Types& types);

  // Scans the sum of the gradients, into one result per piece.
  void scan_sums(const StateStream::Types& types, std::span<ScanResult> results) const;

  // Returns the memory of a piece's weight in the type that the model computes with.
  std::span<std::byte> weight_of(const ChunkPiece& piece, DType dtype) const;

  template <typename G>
  std::vector<std::span<const G>> gradients_of(const ChunkPiece& piece) const {
    std::vector<std::span<const G>> views;
    for (const std::span<std::byte> gradient : gradients) {
      views.push_back(
          elements<G>(std::span<const std::byte>(gradient))
              .subspan(static_cast<std::size_t>(piece.at), static_cast<std::size_t>(piece.elems)));
    }
    return views;
  }

  // Passes every piece's states to `act`, as f32. `writes`: stores what `act` leaves there, rounded
  // to nearest.
  void visit(const StateStream::Visit& act, bool writes);
  void visit_rounded(const ChunkPiece& piece, const StateStream::Visit& act, bool writes);

  // ---- For the pieces that have a gradient ----
  void adam(const StateStream::Types& types);
  void round_weights(const StateStream::Types& types);  // From their masters.
  void hand_on(const ChunkUpdate::Emit& take, const StateStream::Types& types,
               StreamRef stream) const;

  template <typename G, typename Weight>
  void adam_rounded(const ChunkPiece& piece, const PieceUpdate& with, std::size_t first,
                    std::span<const G> g, std::span<Weight> copied,
                    const StateStream::Types& types);

  int index;
  bool in_place;
  const PlannedChunk& chunk;
  ChunkUpdate update;
  StateForm form;
  std::vector<std::size_t> travelling;  // Parts of the states.
  bool filled;                          // `update.fill` writes the gradient.
  std::size_t regions;                  // Gradients, without a gathered one.
  Version version = Version::kLive;     // kStaged: written last, staged or committed.
  // The pass in which its weight may have been kept (kept_weights.h); none: it is read.
  std::optional<std::uint64_t> kept_pass;
  std::optional<PinnedPool::Lease> lease;
  StateForm::Parts parts;
  std::vector<std::span<std::byte>> gradients;
  std::span<std::byte> copy;
  std::size_t copy_width = 0;  // Bytes of an element of `copy`.
};

}  // namespace sluiceway
