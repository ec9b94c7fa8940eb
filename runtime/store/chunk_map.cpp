#include "runtime/store/chunk_map.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace sluiceway {

ChunkMap::ChunkMap(const Layout& layout, std::vector<Extent> live,
                   std::optional<std::vector<Extent>> pinned)
    : live_(std::move(live)), pinned_(std::move(pinned)), staged_(live_.size()) {
  grown(layout);
}

void ChunkMap::grown(const Layout& layout) {
  layout_ = layout;
  striping_.clear();
  first_entry_.clear();
  std::vector<Extent> extents;
  std::size_t committed = 0, kept = 0;
  for (std::size_t r = 0; r < layout_.regions.size(); ++r) {
    const Region& region = layout_.regions[r];
    striping_.emplace_back(region.chunks, layout_.drives);
    first_entry_.push_back(region.is_committed() ? committed : extents.size());
    if (region.is_committed()) {
      committed += region.chunks;
      continue;
    }
    // Extents are ordered slot by slot, so the earlier ones stay in front.
    const std::size_t had = extent_counts_.empty() ? 0 : extent_counts_[r];
    const auto first = extents_.begin() + static_cast<std::ptrdiff_t>(kept);
    extents.insert(extents.end(), first, first + static_cast<std::ptrdiff_t>(had));
    kept += had;
    extents.resize(first_entry_[r] + region.chunks * region.slots());
  }
  extents_ = std::move(extents);
  extent_counts_.clear();
  for (const Region& region : layout_.regions) {
    extent_counts_.push_back(region.is_committed() ? 0 : region.chunks * region.slots());
  }
  SLUICEWAY_CHECK(live_.size() == committed, "ChunkMap: the table has ", live_.size(),
                  " chunks, expected ", committed);
}

std::size_t ChunkMap::at(ChunkId id) const {
  SLUICEWAY_CHECK(id.region < layout_.regions.size(), "ChunkMap: region ", id.region,
                  ", expected a number below ", layout_.regions.size());
  const Region& region = layout_.regions[id.region];
  SLUICEWAY_CHECK(region.is_committed(), "ChunkMap: region ", id.region, " holds ",
                  to_string(region.kind),
                  ", which no commit holds; name a region of state, weights or log");
  SLUICEWAY_CHECK(id.chunk < region.chunks, "ChunkMap: chunk ", id.chunk, " of region ", id.region,
                  ", expected a number below ", region.chunks);
  return first_entry_[id.region] + id.chunk;
}

std::size_t ChunkMap::at(ChunkId id, std::uint64_t slot) const {
  SLUICEWAY_CHECK(id.region < layout_.regions.size(), "ChunkMap: region ", id.region,
                  ", expected a number below ", layout_.regions.size());
  const Region& region = layout_.regions[id.region];
  SLUICEWAY_CHECK(!region.is_committed(), "ChunkMap: region ", id.region, " holds ",
                  to_string(region.kind), ", which has no extents; name a gradient region");
  SLUICEWAY_CHECK(id.chunk < region.chunks && slot < region.slots(), "ChunkMap: slot ", slot,
                  " of chunk ", id.chunk, " of region ", id.region, ", expected a slot below ",
                  region.slots(), " and a chunk below ", region.chunks);
  return first_entry_[id.region] + slot * region.chunks + id.chunk;
}

const Extent& ChunkMap::pinned(ChunkId id) const {
  SLUICEWAY_CHECK(pinned_.has_value(), "ChunkMap: no version is pinned; call pin() first");
  return pinned_->at(at(id));
}

const Extent& ChunkMap::extent(ChunkId id, std::uint64_t slot) const {
  return extents_[at(id, slot)];
}

bool ChunkMap::is_free(const Place& place, std::size_t entry) const {
  const bool kept = live_[entry].place == place || (pinned_ && (*pinned_)[entry].place == place);
  return !kept && !bad_.contains(place);
}

Place ChunkMap::begin_write(ChunkId id) {
  const std::size_t entry = at(id);
  if (const auto staged = std::exchange(staged_[entry], std::nullopt)) return staged->place;
  const Region& region = layout_.regions[id.region];
  for (std::uint64_t slot = 0; slot < region.slots(); ++slot) {
    const Place place = home(region, striping_[id.region], id.chunk, slot);
    if (is_free(place, entry)) return place;
  }
  return spare_of(id, region.slots());
}

Place ChunkMap::begin_extent(ChunkId id, std::uint64_t slot) {
  const Extent entry = std::exchange(extents_[at(id, slot)], {});
  if (entry.place) return entry.place;
  const Place place = home(layout_.regions[id.region], striping_[id.region], id.chunk, slot);
  return bad_.contains(place) ? spare_of(id, 1) : place;
}

Place ChunkMap::spare_of(ChunkId id, std::uint64_t slots) {
  const auto spare = relocate(id, {});
  SLUICEWAY_CHECK(spare.has_value(), "ChunkMap: chunk ", id.chunk, " of region ", id.region,
                  " has no writable slot left among its ", slots,
                  "; add a slot to the region, or unpin");
  return *spare;
}

// Scans every table: failed writes are rare, and a list of free spares would need an update at each
// commit and drop.
bool ChunkMap::is_used(const Place& place) const {
  const auto here = [&place](const Extent& entry) { return entry.place == place; };
  return bad_.contains(place) || lent_.contains(place) || std::ranges::any_of(live_, here) ||
         (pinned_ && std::ranges::any_of(*pinned_, here)) || std::ranges::any_of(extents_, here) ||
         std::ranges::any_of(staged_, [&](const auto& entry) { return entry && here(*entry); });
}

std::optional<Place> ChunkMap::relocate(ChunkId id, const Place& failed) {
  if (failed) {
    bad_.insert(failed);
    lent_.erase(failed);
  }
  const Spares& spares = layout_.spares;
  if (layout_.regions.at(id.region).chunk_bytes > spares.chunk_bytes) return std::nullopt;
  const auto drives = static_cast<std::uint32_t>(layout_.drives.size());
  for (std::uint32_t next = 0; next < drives; ++next) {
    const std::uint32_t drive = (failed.drive + next) % drives;
    for (std::uint64_t i = 0; i < spares.per_drive; ++i) {
      const Place place{drive, spares.base[drive] + i * spares.chunk_bytes};
      if (is_used(place)) continue;
      lent_.insert(place);
      return place;
    }
  }
  return std::nullopt;
}

void ChunkMap::end_write(ChunkId id, const Extent& written) {
  lent_.erase(written.place);
  staged_[at(id)] = written;
}

void ChunkMap::end_extent(ChunkId id, std::uint64_t slot, const Extent& written) {
  lent_.erase(written.place);
  extents_[at(id, slot)] = written;
}

std::vector<Extent> ChunkMap::next_table() const {
  std::vector<Extent> table = live_;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (staged_[i]) table[i] = *staged_[i];
  }
  return table;
}

void ChunkMap::commit() {
  live_ = next_table();
  drop();
}

void ChunkMap::drop() {
  std::ranges::fill(staged_, std::nullopt);
  std::ranges::fill(extents_, Extent{});
  lent_.clear();  // No write is in progress.
}

}  // namespace sluiceway
