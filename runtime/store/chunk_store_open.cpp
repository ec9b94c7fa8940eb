// How a store is made and opened: create(), open().
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/blocks.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/new_file.h"
#include "runtime/store/new_layout.h"
#include "runtime/store/place_bytes.h"
#include "runtime/store/store_requests.h"

namespace sluiceway {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{4} << 20;  // Size of one write or read.

// Writes zeros from the end of the header on, so that every block of the file is allocated.
void write_once(const ChunkStore::Drives& drives, const Layout& layout,
                const ChunkStore::Progress& progress) {
  std::uint64_t all = 0, done = 0;
  for (const DriveShare& drive : layout.drives) all += drive.bytes;
  Blocks zeros(kPieceBytes);
  for (std::size_t d = 0; d < drives.size(); ++d) {
    for (std::uint64_t at = 0; at < layout.drives[d].bytes; at += kPieceBytes) {
      const std::uint64_t bytes = std::min(kPieceBytes, layout.drives[d].bytes - at);
      drives[d]->write_now(at, zeros.all().first(bytes), "the new store");
      done += bytes;
      if (progress) progress(done, all);
    }
  }
}

std::vector<std::byte> read_checked(Drive& drive, const Extent& extent, std::string_view name) {
  if (extent.bytes > drive.size_bytes()) {
    throw Corrupt(concat("store: ", name, " of ", extent.bytes, " bytes, expected at most the ",
                         drive.size_bytes(), " of ", drive.properties().path));
  }
  Blocks blocks(extent.bytes);
  if (extent.bytes > 0) {
    if (extent.place.offset > drive.size_bytes() - blocks.all().size()) {
      throw Corrupt(concat("store: ", name, " begins at byte ", extent.place.offset,
                           ", expected a byte within ", drive.properties().path));
    }
    drive.read_now(extent.place.offset, blocks.all(), name);
  }
  const auto bytes = blocks.all().first(extent.bytes);
  if (const std::uint64_t found = checksum64(bytes); found != extent.checksum) {
    throw Corrupt(concat("store: ", name, " at byte ", extent.place.offset, " of ",
                         drive.properties().path, " has checksum ", to_hex(found), ", expected ",
                         to_hex(extent.checksum)));
  }
  return {bytes.begin(), bytes.end()};
}

// Checks that the drives are all drives of one store, in order.
void check_headers(const ChunkStore::Drives& drives) {
  std::optional<DriveHeader> first;
  for (std::size_t d = 0; d < drives.size(); ++d) {
    const std::string& path = drives[d]->properties().path;
    SLUICEWAY_CHECK(drives[d]->size_bytes() >= kFirstExtent, "store: ", path,
                    " is no store: it has ", drives[d]->size_bytes(), " bytes, expected at least ",
                    kFirstExtent);
    Blocks block(kBlockBytes);
    drives[d]->read_now(kHeaderOffset, block.all(), "the header");
    SLUICEWAY_CHECK(is_drive_header(block.all()), "store: ", path,
                    " is no store, or making it was interrupted; choose another path, or remove "
                    "this file if it holds nothing you need");
    const DriveHeader header = decode_header(block.all());
    if (!first) first = header;
    SLUICEWAY_CHECK(header.id == first->id && header.drives == drives.size() && header.drive == d,
                    "store: ", path, " is drive ", header.drive, " of ", header.drives,
                    " of store ", to_hex(header.id), ", expected drive ", d, " of ", drives.size(),
                    " of store ", to_hex(first->id),
                    "; name all drives of one store, in their order");
  }
}

ChosenSuperblock read_superblock(Drive& drive) {
  Blocks copies(2 * kBlockBytes);
  drive.read_now(kSuperblockOffset, copies.all(), "the superblocks");
  return choose_superblock(copies.all().first(kBlockBytes), copies.all().subspan(kBlockBytes));
}

}  // namespace

bool ChunkStore::is_drive(const std::string& path) {
  Block block{};
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(concat("store: cannot open ", path), errno, path, -1);
  file.read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(block.size()));
  return file.gcount() == std::ssize(block) && is_drive_header(block);
}

std::unique_ptr<ChunkStore> ChunkStore::create(Budget& budget, Drives drives, const Layout& layout,
                                               const Progress& progress) {
  SLUICEWAY_CHECK(drives.size() == layout.drives.size(), "store: ", drives.size(),
                  " drives, expected ", layout.drives.size(), " as in the layout");
  for (std::size_t d = 0; d < drives.size(); ++d) {
    SLUICEWAY_CHECK(drives[d]->size_bytes() >= layout.drives[d].bytes,
                    "store: ", drives[d]->properties().path, " is ",
                    format_bytes(drives[d]->size_bytes()), ", expected at least ",
                    format_bytes(layout.drives[d].bytes));
  }
  write_once(drives, layout, progress);
  Superblock none;
  none.id = random_id();
  const std::vector<std::byte> directory = encode(layout);
  none.directory = {first_directory_place(), directory.size(), checksum64(directory)};
  Blocks blocks(directory);
  drives.front()->write_now(none.directory.place.offset, blocks.all(), "the directory");
  std::unique_ptr<ChunkStore> store(new ChunkStore(budget, std::move(drives), none, layout,
                                                   std::vector<Extent>(committed_chunks(layout)),
                                                   std::nullopt));
  store->commit(0, {});
  // Writes the headers last: a file without a header is no store.
  for (std::uint32_t d = 0; d < store->drives_.size(); ++d) {
    const auto count = static_cast<std::uint32_t>(store->drives_.size());
    const Block header = encode(DriveHeader{none.id, d, count});
    Blocks block{std::span<const std::byte>(header)};
    store->drives_[d]->write_now(kHeaderOffset, block.all(), "the header");
    store->drives_[d]->flush();
  }
  return store;
}

std::unique_ptr<ChunkStore> ChunkStore::open(Budget& budget, Drives drives) {
  SLUICEWAY_CHECK(!drives.empty(),
                  "store: no drives, expected 1 or more; name all drives of the store");
  check_headers(drives);
  Drive& first = *drives.front();
  auto [superblock, damage] = read_superblock(first);
  const Layout layout = decode_layout(read_checked(first, superblock.directory, "the directory"));
  if (layout.drives.size() != drives.size()) {
    throw Corrupt(concat("store: its directory lists ", layout.drives.size(), " drives, expected ",
                         drives.size(), ", as the headers say"));
  }
  for (std::size_t d = 0; d < drives.size(); ++d) {
    if (drives[d]->size_bytes() < layout.drives[d].bytes) {
      throw Corrupt(concat("store: ", drives[d]->properties().path, " is cut off: it has ",
                           format_bytes(drives[d]->size_bytes()), ", expected ",
                           format_bytes(layout.drives[d].bytes)));
    }
  }
  std::vector<Extent> live =
      decode_table(read_checked(first, superblock.live.table, "the table"), layout);
  std::optional<std::vector<Extent>> pinned;
  if (superblock.pinned) {
    pinned =
        decode_table(read_checked(first, superblock.pinned->table, "the pinned table"), layout);
  }
  std::unique_ptr<ChunkStore> store(new ChunkStore(budget, std::move(drives), superblock, layout,
                                                   std::move(live), std::move(pinned)));
  store->damage_ = damage;
  return store;
}

std::vector<std::byte> ChunkStore::run_state(const Commit& commit) {
  check_usable("run_state");
  return read_checked(*drives_.front(), commit.run_state, "the run state");
}

}  // namespace sluiceway
