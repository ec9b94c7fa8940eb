// Knows which place holds each chunk in each commit that a store keeps, and picks the place for the
// next write.
//
//   live     the last commit
//   pinned   a commit that is kept until another one is pinned
//   staged   writes since the last commit; commit() makes them live, drop() forgets them
//
// A chunk is written to a slot that is neither live nor pinned. So two slots keep one commit whole
// while the next is written, and three also keep a pinned one. A slot that cannot be written is not
// used again while the store is open; a spare takes its place.
//
// Chunks of gradient regions belong to no commit: slot k of such a chunk is the extent of
// micro-batch k.
//
// Thread safety: one thread at a time.
// Errors:        InvalidArgument: the chunk or slot does not exist, or no slot may be written.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "runtime/store/format.h"
#include "runtime/store/layout.h"

namespace sluiceway {

struct ChunkId {
  std::uint32_t region = 0;
  std::uint64_t chunk = 0;
};

class ChunkMap {
 public:
  // `live` and `pinned` are tables of all committed regions, in order, as decode_table() returns
  // them.
  ChunkMap(const Layout& layout, std::vector<Extent> live,
           std::optional<std::vector<Extent>> pinned);

  // Returns an empty place if the chunk was never written.
  const Extent& live(ChunkId id) const { return live_.at(at(id)); }
  const Extent& pinned(ChunkId id) const;  // InvalidArgument: no version is pinned.
  std::optional<Extent> staged(ChunkId id) const { return staged_.at(at(id)); }
  const Extent& extent(ChunkId id, std::uint64_t slot) const;

  // Picks the place to write a chunk, or an extent of a gradient, and forgets its staged content.
  Place begin_write(ChunkId id);
  Place begin_extent(ChunkId id, std::uint64_t slot);
  // Call when a write to `failed` failed. Returns another place, or nothing if no spare is left.
  std::optional<Place> relocate(ChunkId id, const Place& failed);
  void end_write(ChunkId id, const Extent& written);
  void end_extent(ChunkId id, std::uint64_t slot, const Extent& written);

  std::vector<Extent> next_table() const;  // The table that commit() makes live.
  void commit();                           // No write may be in progress.
  void drop();                             // No write may be in progress.
  void pin() { pinned_ = live_; }
  void unpin() { pinned_.reset(); }
  void revert() { live_ = *pinned_; }
  bool has_pin() const noexcept { return pinned_.has_value(); }

  // Call after slots were added to the layout.
  void grown(const Layout& layout);

 private:
  std::size_t at(ChunkId id) const;  // Index into a table.
  std::size_t at(ChunkId id, std::uint64_t slot) const;
  bool is_free(const Place& place, std::size_t entry) const;
  bool is_used(const Place& place) const;
  Place spare_of(ChunkId id, std::uint64_t slots);

  Layout layout_;
  std::vector<Striping> striping_;        // By region.
  std::vector<std::size_t> first_entry_;  // By region: first index into a table or extents_.
  std::vector<Extent> live_;
  std::optional<std::vector<Extent>> pinned_;
  std::vector<std::optional<Extent>> staged_;
  std::vector<Extent> extents_;  // Extents of gradient regions: slot by slot, chunk by chunk.
  std::vector<std::size_t> extent_counts_;  // By region: number of entries in extents_.
  std::set<Place> bad_;
  std::set<Place> lent_;  // Spares now being written.
};

}  // namespace sluiceway
