// Which place holds a chunk, for each of the steps that a store keeps, and where it is written
// next.
//
//   live     the last commit
//   pinned   a commit that stays until another is pinned
//   staged   what was written since the last commit; commit makes it live, drop forgets it
//
// A chunk is written to a slot that is neither live nor pinned, so two slots keep one commit whole
// while the next is written, and three keep a pinned one too. A slot that cannot be written is
// given up for as long as the store is open, and a spare takes its place.
//
// Chunks of gradient regions belong to no commit: slot k of one is the extent of micro-batch k.
//
// Thread safety: one thread at a time.
// Errors:        InvalidArgument: a chunk or slot that there is not, or no slot that may be
// written.
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
  // Tables are those of all committed regions, in order, as decode_table() returns them.
  ChunkMap(const Layout& layout, std::vector<Extent> live,
           std::optional<std::vector<Extent>> pinned);

  // An empty place: never written.
  const Extent& live(ChunkId id) const { return live_.at(at(id)); }
  const Extent& pinned(ChunkId id) const;  // InvalidArgument: nothing is pinned.
  std::optional<Extent> staged(ChunkId id) const { return staged_.at(at(id)); }
  const Extent& extent(ChunkId id, std::uint64_t slot) const;

  // Where a chunk, or an extent of a gradient, is to be written; what was staged there is
  // forgotten.
  Place begin_write(ChunkId id);
  Place begin_extent(ChunkId id, std::uint64_t slot);
  // The place could not be written: another, or nothing where no spare is left.
  std::optional<Place> relocate(ChunkId id, const Place& failed);
  void end_write(ChunkId id, const Extent& written);
  void end_extent(ChunkId id, std::uint64_t slot, const Extent& written);

  std::vector<Extent> next_table() const;  // What commit would make live.
  void commit();                           // Nothing is being written.
  void drop();                             // Likewise.
  void pin() { pinned_ = live_; }
  void unpin() { pinned_.reset(); }
  void revert() { live_ = *pinned_; }
  bool has_pin() const noexcept { return pinned_.has_value(); }

  // The layout has grown by slots.
  void grown(const Layout& layout);

 private:
  std::size_t at(ChunkId id) const;  // In a table.
  std::size_t at(ChunkId id, std::uint64_t slot) const;
  bool is_free(const Place& place, std::size_t entry) const;
  bool is_used(const Place& place) const;
  Place spare_of(ChunkId id, std::uint64_t slots);

  Layout layout_;
  std::vector<Striping> striping_;        // By region.
  std::vector<std::size_t> first_entry_;  // By region: in a table, or in extents_.
  std::vector<Extent> live_;
  std::optional<std::vector<Extent>> pinned_;
  std::vector<std::optional<Extent>> staged_;
  std::vector<Extent> extents_;             // Of gradient regions: slot by slot, chunk by chunk.
  std::vector<std::size_t> extent_counts_;  // By region: entries of extents_.
  std::set<Place> bad_;
  std::set<Place> lent_;  // Spares that are being written.
};

}  // namespace sluiceway
