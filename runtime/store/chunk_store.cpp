#include "runtime/store/chunk_store.h"

#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/new_layout.h"
#include "runtime/store/place_bytes.h"
#include "runtime/store/store_requests.h"

namespace sluiceway {
namespace {

std::exception_ptr exception_of(const IoError* error) {
  return error == nullptr ? nullptr : std::make_exception_ptr(*error);
}

}  // namespace

std::uint64_t ChunkStore::table_bytes(const Layout& layout) noexcept {
  constexpr std::uint64_t kPlaces = 16;  // Place of a chunk; extents: live, pinned, staged.
  return committed_chunks(layout) * (4 * sizeof(Extent) + kPlaces);
}

ChunkStore::ChunkStore(Budget& budget, Drives drives, Superblock superblock, Layout layout,
                       std::vector<Extent> live, std::optional<std::vector<Extent>> pinned)
    : drives_(std::move(drives)),
      superblock_(std::move(superblock)),
      layout_(std::move(layout)),
      tables_(budget.reserve(Tier::kHost, table_bytes(layout_), "tables of the store")),
      requests_(std::make_unique<Requests>(ChunkMap(layout_, std::move(live), std::move(pinned)))) {
}

ChunkStore::~ChunkStore() {
  if (requests_ != nullptr) wait_idle();
}

void ChunkStore::read(ChunkId id, Version version, std::span<std::byte> into, Done done) {
  check_usable("read");
  submit_read(extent_of(id, version), name_of(id), into, std::move(done));
}

void ChunkStore::read_extent(ChunkId id, std::uint64_t slot, std::span<std::byte> into, Done done) {
  check_usable("read_extent");
  Extent entry;
  {
    const std::lock_guard lock(requests_->mutex);
    entry = requests_->map.extent(id, slot);
  }
  submit_read(entry, concat("extent ", slot, " of ", name_of(id)), into, std::move(done));
}

void ChunkStore::submit_read(const Extent& entry, const std::string& name,
                             std::span<std::byte> into, Done done) {
  SLUICEWAY_CHECK(entry.place, "store: ", name, " was never written; write it first");
  SLUICEWAY_CHECK(into.size() == entry.bytes, "store: ", name, ": the buffer has ", into.size(),
                  " bytes, expected the ", entry.bytes, " that were written");
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
                ", expected ", to_hex(entry.checksum), "; the drive lost or changed the data"));
            done(std::make_exception_ptr(corrupt));
          } else {
            done(exception_of(error));
          }
          requests_->end();
        });
  } catch (...) {
    requests_->end();
    throw;
  }
}

void ChunkStore::write(ChunkId id, std::span<const std::byte> from, Done done) {
  start_write("write", id, std::nullopt, from, std::move(done));
}

void ChunkStore::write_extent(ChunkId id, std::uint64_t slot, std::span<const std::byte> from,
                              Done done) {
  start_write("write_extent", id, slot, from, std::move(done));
}

void ChunkStore::start_write(const char* caller, ChunkId id, std::optional<std::uint64_t> slot,
                             std::span<const std::byte> from, Done done) {
  check_write(caller, id, from.size());
  Place place;
  {
    const std::lock_guard lock(requests_->mutex);
    ChunkMap& map = requests_->map;
    place = slot ? map.begin_extent(id, *slot) : map.begin_write(id);
  }
  submit_write(id, slot, place, from, checksum64(from), std::move(done));
}

// A place that cannot be written is not used again; the handler submits the chunk to a spare.
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
              const Extent written{place, from.size(), checksum};
              slot ? map.end_extent(id, *slot, written) : map.end_write(id, written);
            } else {
              spare = map.relocate(id, place);
              if (spare) ++requests_->relocated;
            }
          }
          if (!spare) {
            done(exception_of(error));
          } else {
            try {
              submit_write(id, slot, *spare, from, checksum, done);
            } catch (...) {
              done(std::current_exception());
            }
          }
          requests_->end();
        });
  } catch (...) {
    requests_->end();
    throw;
  }
}

std::span<std::byte> ChunkStore::memory(ChunkId id, std::uint64_t slot) {
  check_usable("memory");
  const Region& region = layout_.regions.at(id.region);
  const Place place = home(region, Striping(region.chunks, layout_.drives), id.chunk, slot);
  return drives_[place.drive]->memory(place.offset, region.chunk_bytes);
}

void ChunkStore::wait_idle() {
  std::unique_lock lock(requests_->mutex);
  requests_->idle.wait(lock, [this] { return requests_->in_flight == 0; });
}

void ChunkStore::check_usable(const char* caller) const {
  SLUICEWAY_CHECK(unusable_.empty(), "store: ", caller, "() failed: ", unusable_,
                  "; reopen the store, which returns it to its last commit");
}

// Runs before the staged content of the chunk is forgotten. The map checks that the chunk exists.
void ChunkStore::check_write(const char* caller, ChunkId id, std::size_t bytes) const {
  check_usable(caller);
  if (id.region >= layout_.regions.size()) return;
  const std::uint64_t most = layout_.regions[id.region].chunk_bytes;
  SLUICEWAY_CHECK(bytes > 0 && bytes <= most && bytes % kBlockBytes == 0, "store: ", name_of(id),
                  ": ", bytes, " bytes, expected a multiple of ", kBlockBytes, ", at most the ",
                  most, " of a chunk");
}

std::string ChunkStore::name_of(ChunkId id) const {
  const bool known = id.region < layout_.regions.size();
  return concat("chunk ", id.chunk, " of region ", id.region, " (",
                known ? to_string(layout_.regions[id.region].kind) : "unknown", ")");
}

Extent ChunkStore::extent_of(ChunkId id, Version version) const {
  const std::lock_guard lock(requests_->mutex);
  const ChunkMap& map = requests_->map;
  switch (version) {
    case Version::kLive:
      return map.live(id);
    case Version::kPinned:
      return map.pinned(id);
    case Version::kStaged:
      return map.staged(id).value_or(Extent());
  }
  return {};
}

std::uint64_t ChunkStore::written_bytes(ChunkId id, Version version) const {
  return extent_of(id, version).bytes;
}

bool ChunkStore::is_in_memory() const noexcept {
  return drives_.front()->properties().backend == "memory";
}

std::uint64_t ChunkStore::relocated() const {
  const std::lock_guard lock(requests_->mutex);
  return requests_->relocated;
}

}  // namespace sluiceway
