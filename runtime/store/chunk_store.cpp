#include "runtime/store/chunk_store.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/place_bytes.h"
#include "runtime/store/store_requests.h"

namespace sluiceway {
namespace {

void check_size(std::size_t found, const Region& region, const std::string& name) {
  SLUICEWAY_CHECK(found == region.chunk_bytes, "store: ", name, ": memory of ", found,
                  " bytes, expected the ", region.chunk_bytes, " of a chunk");
}

}  // namespace

// Memory of the tables: live, pinned and staged entries of each chunk, and where each lies.
ChunkStore::ChunkStore(Budget& budget, Drives drives, Superblock superblock, Layout layout,
                       std::vector<TableEntry> live, std::optional<std::vector<TableEntry>> pinned)
    : drives_(std::move(drives)),
      superblock_(std::move(superblock)),
      layout_(std::move(layout)),
      tables_(budget.reserve(Tier::kHost, live.size() * (4 * sizeof(TableEntry) + 16),
                             "tables of the store")),
      requests_(std::make_unique<Requests>(ChunkMap(layout_, std::move(live), std::move(pinned)))) {
}

ChunkStore::~ChunkStore() {
  if (requests_ != nullptr) wait_idle();
}

void ChunkStore::read(ChunkId id, Version version, std::span<std::byte> into, Done done) {
  check_usable("read");
  TableEntry entry;
  {
    const std::lock_guard lock(requests_->mutex);
    const ChunkMap& map = requests_->map;
    if (version == Version::kLive) entry = map.live(id);
    if (version == Version::kPinned) entry = map.pinned(id);
    if (version == Version::kStaged) entry = map.staged(id).value_or(TableEntry{});
  }
  submit_read(id, entry, name_of(id), into, std::move(done));
}

void ChunkStore::read_extent(ChunkId id, std::uint64_t slot, std::span<std::byte> into, Done done) {
  check_usable("read_extent");
  TableEntry entry;
  {
    const std::lock_guard lock(requests_->mutex);
    entry = requests_->map.extent(id, slot);
  }
  submit_read(id, entry, concat("extent ", slot, " of ", name_of(id)), into, std::move(done));
}

void ChunkStore::submit_read(ChunkId id, const TableEntry& entry, std::string name,
                             std::span<std::byte> into, Done done) {
  check_size(into.size(), layout_.regions[id.region], name);
  SLUICEWAY_CHECK(entry.place, "store: ", name,
                  " was never written, expected one that was; write it first");
  Drive& drive = *drives_[entry.place.drive];
  requests_->begin();
  try {
    drive.read(
        entry.place.offset, into, name,
        [this, entry, name, into, done = std::move(done)](const IoError* error) {
          const std::uint64_t found = error == nullptr ? checksum64(into) : 0;
          if (error == nullptr && found != entry.checksum) {
            const Corrupt corrupt(concat(
                "store: ", name, " at byte ", entry.place.offset, " of ",
                drives_[entry.place.drive]->properties().path, " has checksum ", to_hex(found),
                ", expected ", to_hex(entry.checksum), "; the drive has lost or changed it"));
            done(&corrupt);
          } else {
            done(error);
          }
          requests_->end();
        });
  } catch (...) {
    requests_->end();
    throw;
  }
}

void ChunkStore::write(ChunkId id, std::span<const std::byte> from, Done done) {
  check_usable("write");
  Place place;
  {
    const std::lock_guard lock(requests_->mutex);
    place = requests_->map.begin_write(id);
  }
  check_size(from.size(), layout_.regions[id.region], name_of(id));
  submit_write(id, std::nullopt, place, from, checksum64(from), std::move(done));
}

void ChunkStore::write_extent(ChunkId id, std::uint64_t slot, std::span<const std::byte> from,
                              Done done) {
  check_usable("write_extent");
  Place place;
  {
    const std::lock_guard lock(requests_->mutex);
    place = requests_->map.begin_extent(id, slot);
  }
  check_size(from.size(), layout_.regions[id.region], name_of(id));
  submit_write(id, slot, place, from, checksum64(from), std::move(done));
}

// A place that cannot be written is given up, and the handler submits the chunk to a spare.
void ChunkStore::submit_write(ChunkId id, std::optional<std::uint64_t> slot, Place place,
                              std::span<const std::byte> from, std::uint64_t checksum, Done done) {
  requests_->begin();
  try {
    drives_[place.drive]->write(
        place.offset, from, name_of(id),
        [this, id, slot, place, from, checksum, done = std::move(done)](const IoError* error) {
          std::optional<Place> spare;
          {
            const std::lock_guard lock(requests_->mutex);
            ChunkMap& map = requests_->map;
            if (error == nullptr) {
              const TableEntry written{place, checksum};
              slot ? map.end_extent(id, *slot, written) : map.end_write(id, written);
            } else {
              spare = map.relocate(id, place);
              if (spare) ++requests_->relocated;
            }
          }
          if (!spare) {
            done(error);
          } else {
            try {
              submit_write(id, slot, *spare, from, checksum, done);
            } catch (const Error& refused) {
              done(&refused);
            }
          }
          requests_->end();
        });
  } catch (...) {
    requests_->end();
    throw;
  }
}

void ChunkStore::wait_idle() {
  std::unique_lock lock(requests_->mutex);
  requests_->idle.wait(lock, [this] { return requests_->in_flight == 0; });
}

void ChunkStore::check_usable(const char* caller) const {
  SLUICEWAY_CHECK(unusable_.empty(), "store: ", caller, " after ", unusable_,
                  ", expected an open store; open it again, at its last commit");
}

std::string ChunkStore::name_of(ChunkId id) const {
  const bool known = id.region < layout_.regions.size();
  return concat("chunk ", id.chunk, " of region ", id.region, " (",
                known ? to_string(layout_.regions[id.region].kind) : "unknown", ")");
}

bool ChunkStore::was_written(ChunkId id, Version version) const {
  const std::lock_guard lock(requests_->mutex);
  const ChunkMap& map = requests_->map;
  switch (version) {
    case Version::kLive:
      return bool(map.live(id).place);
    case Version::kPinned:
      return bool(map.pinned(id).place);
    case Version::kStaged:
      return map.staged(id).has_value();
  }
  return false;
}

std::uint64_t ChunkStore::relocated() const {
  const std::lock_guard lock(requests_->mutex);
  return requests_->relocated;
}

}  // namespace sluiceway
