// What an arena holds and where: drives, regions of chunks with their slots, spares, tables.
//
// A region is a row of chunks of one size. Every chunk of a region has the same number of slots,
// and a slot of all chunks lies together: slot s of the chunks on drive d starts at base[s][d].
// Chunks are dealt to the drives by their weights, so that each drive is busy for the same time.
//
// Places count from the start of a drive's file in blocks; block 0 is the drive's header, so no
// chunk's place is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluiceway {

inline constexpr std::uint64_t kBlockBytes = 4096;  // Of every offset, length and address.

// Where something starts; Place{} is nowhere.
struct Place {
  std::uint32_t drive = 0;
  std::uint64_t offset = 0;  // Bytes, a multiple of kBlockBytes.

  explicit operator bool() const noexcept { return drive != 0 || offset != 0; }
  friend bool operator==(const Place&, const Place&) = default;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// What the chunks of a region are for. Those of kGradient live for one step: no commit holds them.
enum class RegionKind : std::uint32_t { kState = 1, kGradient = 2, kWeights = 3, kLog = 4 };
std::string_view to_string(RegionKind kind) noexcept;
bool is_known(RegionKind kind) noexcept;
RegionKind parse_region_kind(std::string_view name);  // InvalidArgument: names the known ones.

struct Region {
  RegionKind kind = RegionKind::kState;
  std::uint64_t chunk_bytes = 0;  // A multiple of kBlockBytes.
  std::uint64_t chunks = 0;
  std::vector<std::vector<std::uint64_t>> base;  // [slot][drive], bytes.

  bool is_committed() const noexcept { return kind != RegionKind::kGradient; }
  std::uint64_t slots() const noexcept { return base.size(); }
};

struct DriveShare {
  std::uint64_t bytes = 0;   // Of the file, or as much of the device as is used.
  std::uint32_t weight = 1;  // Its share of every region, as measured when the store was made.
};

// Chunks that take the place of those whose slot cannot be written.
struct Spares {
  std::uint64_t chunk_bytes = 0;  // That of the largest region.
  std::uint64_t per_drive = 0;
  std::vector<std::uint64_t> base;  // [drive]
};

// Tables and run states lie on the first drive.
struct MetaSlots {
  std::uint64_t bytes = 0;          // Of a slot.
  std::vector<std::uint64_t> base;  // [slot]
};

struct Layout {
  std::vector<DriveShare> drives;
  std::vector<Region> regions;
  Spares spares;
  MetaSlots tables;
  MetaSlots run_states;
  std::vector<std::byte> catalogue;  // Whose chunks they are, in the words of the store's user.
};

// Deals chunks to drives, each time to the one that is furthest behind its weight; among equals to
// the first.
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

// Where a slot of a chunk is.
Place home(const Region& region, const Striping& striping, std::uint64_t chunk, std::uint64_t slot);

}  // namespace sluiceway
