// Describes what an arena holds and where: drives, regions of chunks with their slots, spares,
// tables.
//
// A region is a row of chunks of one size. Every chunk of a region has the same number of slots,
// and equal slots lie together: slot s of the chunks on drive d starts at base[s][d]. Chunks are
// dealt to the drives by weight, so that all drives are busy for the same time.
//
// Places count blocks from the start of a drive's file. Block 0 is the drive's header, so no chunk
// has place 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluiceway {

inline constexpr std::uint64_t kBlockBytes = 4096;  // Divides each offset, length and address.

// Start of an extent; Place{} means nowhere.
struct Place {
  std::uint32_t drive = 0;
  std::uint64_t offset = 0;  // Bytes, a multiple of kBlockBytes.

  explicit operator bool() const noexcept { return drive != 0 || offset != 0; }
  friend bool operator==(const Place&, const Place&) = default;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// Purpose of a region's chunks. kGradient chunks live for one step, and no commit holds them.
enum class RegionKind : std::uint32_t { kState = 1, kGradient = 2, kWeights = 3, kLog = 4 };
std::string_view to_string(RegionKind kind) noexcept;
bool is_known(RegionKind kind) noexcept;
RegionKind parse_region_kind(std::string_view name);  // InvalidArgument: lists the known names.

struct Region {
  RegionKind kind = RegionKind::kState;
  std::uint64_t chunk_bytes = 0;  // A multiple of kBlockBytes.
  std::uint64_t chunks = 0;
  std::vector<std::vector<std::uint64_t>> base;  // [slot][drive], bytes.

  bool is_committed() const noexcept { return kind != RegionKind::kGradient; }
  std::uint64_t slots() const noexcept { return base.size(); }
};

struct DriveShare {
  std::uint64_t bytes = 0;   // Size of the file, or the part of the device that is used.
  std::uint32_t weight = 1;  // Its share of every region, measured when the store was made.
};

// Chunks that replace those whose slots cannot be written.
struct Spares {
  std::uint64_t chunk_bytes = 0;  // Chunk size of the largest region.
  std::uint64_t per_drive = 0;
  std::vector<std::uint64_t> base;  // [drive]
};

// Slots for tables and run states, on the first drive.
struct MetaSlots {
  std::uint64_t bytes = 0;          // Size of one slot.
  std::vector<std::uint64_t> base;  // [slot]
};

struct Layout {
  std::vector<DriveShare> drives;
  std::vector<Region> regions;
  Spares spares;
  MetaSlots tables;
  MetaSlots run_states;
  std::vector<std::byte> catalogue;  // Owner of the chunks, in the format of the store's user.
};

// Deals chunks to drives, each to the drive furthest behind its weight, or to the first of equals.
class Striping {
 public:
  Striping(std::uint64_t chunks, const std::vector<DriveShare>& drives);

  std::uint32_t drive(std::uint64_t chunk) const { return drive_.at(chunk); }
  std::uint64_t rank(std::uint64_t chunk) const { return rank_.at(chunk); }  // On its drive.
  std::uint64_t count(std::uint32_t drive) const { return count_.at(drive); }

 private:
  std::vector<std::uint32_t> drive_;
  std::vector<std::uint64_t> rank_;
  std::vector<std::uint64_t> count_;
};

// Returns the place of a slot of a chunk.
Place home(const Region& region, const Striping& striping, std::uint64_t chunk, std::uint64_t slot);

}  // namespace sluiceway
