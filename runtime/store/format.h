// The on-disk format of everything in an arena except its chunks: drive header, superblock,
// directory, table.
//
// docs/store.md has the grammar. A reader may be given any bytes: it first checks each structure as
// a whole by its 64-bit XXH3, then checks every field before using it.
//
// Thread safety: pure functions.
// Errors:        Corrupt: bytes that no writer here produces; the text names the fault.
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
inline constexpr std::uint64_t kHeaderOffset = 0;         // On every drive.
inline constexpr std::uint64_t kSuperblockOffset = 4096;  // Two copies, on the first drive.
inline constexpr std::uint64_t kFirstExtent = 3 * kBlockBytes;

using StoreId = std::array<std::byte, 16>;
std::string to_hex(const StoreId& id);

// The first block of a drive; written when the store is made, and never again.
struct DriveHeader {
  StoreId id{};
  std::uint32_t drive = 0;
  std::uint32_t drives = 1;
};

// In a table, an empty place means that the chunk was never written.
struct Extent {
  Place place;
  std::uint64_t bytes = 0;     // Checksummed bytes, from `place` on; occupies whole blocks.
  std::uint64_t checksum = 0;  // XXH3-64 of these bytes.

  friend bool operator==(const Extent&, const Extent&) = default;
};

// One whole step: the content of every chunk, and the rest of what a run needs to continue.
struct Commit {
  std::uint64_t generation = 0;  // Generation of the superblock that made this commit.
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

inline constexpr std::uint64_t kExtentBytes = 24;  // Size of one table entry.

using Block = std::array<std::byte, kBlockBytes>;

Block encode(const DriveHeader& header);
Block encode(const Superblock& superblock);
std::vector<std::byte> encode(const Layout& layout);
std::vector<std::byte> encode(std::span<const Extent> table);

// Only the first block of a store begins like this; decode_header() checks the rest.
bool is_drive_header(std::span<const std::byte> block) noexcept;
DriveHeader decode_header(std::span<const std::byte> block);
Superblock decode_superblock(std::span<const std::byte> block);

// Checks that every extent is aligned, inside its drive, and overlaps no other.
Layout decode_layout(std::span<const std::byte> bytes);

// Returns the chunks of all committed regions, in order. Checks that every place is a slot of its
// chunk or a spare, and that every length is whole blocks and fits the chunk.
std::vector<Extent> decode_table(std::span<const std::byte> bytes, const Layout& layout);

// The newer of the superblocks that can be read, and why the other cannot, if so.
struct ChosenSuperblock {
  Superblock superblock;
  std::string damage;  // Empty: both copies are whole, or one was never written.
};
ChosenSuperblock choose_superblock(std::span<const std::byte> copy0,
                                   std::span<const std::byte> copy1);

}  // namespace sluiceway
