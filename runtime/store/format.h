// The bytes of an arena beside its chunks: drive header, superblock, directory, table.
//
// docs/store.md has the grammar. Each is checked as a whole by XXH3 of 64 bits before a field of it
// is believed, and every field is checked before it is used: a reader may be given any bytes.
//
// Thread safety: functions of values.
// Errors:        Corrupt: bytes that are not what a writer here writes; what is wrong is named.
//                Unavailable: a version that this build does not read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/store/layout.h"

namespace sluiceway {

inline constexpr std::uint32_t kStoreVersion = 1;
inline constexpr std::uint64_t kHeaderOffset = 0;         // Of every drive.
inline constexpr std::uint64_t kSuperblockOffset = 4096;  // Two copies, of the first drive.
inline constexpr std::uint64_t kFirstExtent = 3 * kBlockBytes;

using StoreId = std::array<std::byte, 16>;
std::string to_hex(const StoreId& id);

// What is in the first block of a drive; written when the store is made, and never again.
struct DriveHeader {
  StoreId id{};
  std::uint32_t drive = 0;
  std::uint32_t drives = 1;
};

// Of a chunk in a table, an empty place says that it was never written.
struct Extent {
  Place place;
  std::uint64_t bytes = 0;     // What is checked; it starts at `place` and takes whole blocks.
  std::uint64_t checksum = 0;  // XXH3-64 of these bytes.

  friend bool operator==(const Extent&, const Extent&) = default;
};

// One whole step: what every chunk of it is, and what else a run needs to go on.
struct Commit {
  std::uint64_t generation = 0;  // Of the superblock that made it.
  std::uint64_t step = 0;
  Extent table;
  Extent run_state;

  friend bool operator==(const Commit&, const Commit&) = default;
};

struct Superblock {
  StoreId id{};
  std::uint64_t generation = 0;
  Extent directory;
  Commit live;
  std::optional<Commit> pinned;

  friend bool operator==(const Superblock&, const Superblock&) = default;
};

inline constexpr std::uint64_t kExtentBytes = 24;  // Of an extent in a table.

using Block = std::array<std::byte, kBlockBytes>;

Block encode(const DriveHeader& header);
Block encode(const Superblock& superblock);
std::vector<std::byte> encode(const Layout& layout);
std::vector<std::byte> encode(std::span<const Extent> table);

// Only a store's first block begins so; what else it is, decode_header() says.
bool is_drive_header(std::span<const std::byte> block) noexcept;
DriveHeader decode_header(std::span<const std::byte> block);
Superblock decode_superblock(std::span<const std::byte> block);

// Every extent is checked to be aligned, inside of its drive, and apart from all others.
Layout decode_layout(std::span<const std::byte> bytes);

// Chunks of all committed regions, in order. Every place is checked to be a slot of its chunk, or a
// spare, and every length to be whole blocks of it.
std::vector<Extent> decode_table(std::span<const std::byte> bytes, const Layout& layout);

// The newer of the two superblocks that can be read, and why the other cannot, if so.
struct ChosenSuperblock {
  Superblock superblock;
  std::string damage;  // Empty: both copies are whole, or one was never written.
};
ChosenSuperblock choose_superblock(std::span<const std::byte> copy0,
                                   std::span<const std::byte> copy1);

}  // namespace sluiceway
