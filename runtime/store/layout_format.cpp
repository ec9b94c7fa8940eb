// Encodes and decodes the directory and the table: decode_layout(), decode_table() and the writers.
#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/store/byte_stream.h"
#include "runtime/store/format.h"
#include "runtime/store/place_bytes.h"

namespace sluiceway {
namespace {

// More than any store holds, but too few to take gigabytes of memory while reading.
constexpr std::uint64_t kMostChunks = std::uint64_t{1} << 24;
constexpr std::uint32_t kMostRegions = 64;
constexpr std::uint32_t kMostSlots = 4096;
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 56;

std::uint64_t checked(std::uint64_t found, std::uint64_t low, std::uint64_t high,
                      std::string_view what) {
  if (found < low || found > high) {
    throw Corrupt(concat("directory: ", what, " is ", found, ", expected ", low, " to ", high));
  }
  return found;
}

std::uint64_t whole_blocks(std::uint64_t bytes, std::string_view what) {
  if (bytes % kBlockBytes != 0) {
    throw Corrupt(
        concat("directory: ", what, " is ", bytes, ", expected a multiple of ", kBlockBytes));
  }
  return bytes;
}

void put(ByteWriter& out, const std::vector<std::uint64_t>& bases) {
  for (const std::uint64_t base : bases) out.put(base);
}

std::vector<std::uint64_t> take_bases(ByteReader& fields, std::size_t count) {
  std::vector<std::uint64_t> bases(count);
  for (std::uint64_t& base : bases) {
    base = whole_blocks(fields.take<std::uint64_t>(), "the start of an extent");
  }
  return bases;
}

void put(ByteWriter& out, const MetaSlots& slots) {
  out.put(slots.bytes);
  out.put(static_cast<std::uint32_t>(slots.base.size()));
  put(out, slots.base);
}

MetaSlots take_meta(ByteReader& fields, std::string_view what) {
  MetaSlots slots;
  slots.bytes = whole_blocks(checked(fields.take<std::uint64_t>(), 1, kMostBytes, what), what);
  const auto count = checked(fields.take<std::uint32_t>(), 2, kMostSlots, what);
  slots.base = take_bases(fields, count);
  return slots;
}

Region take_region(ByteReader& fields, std::size_t drives) {
  Region region;
  region.kind = static_cast<RegionKind>(fields.take<std::uint32_t>());
  if (!is_known(region.kind)) {
    throw Corrupt(concat("directory: a region is of kind ", static_cast<std::uint32_t>(region.kind),
                         ", expected 1 to 4"));
  }
  region.chunk_bytes = whole_blocks(
      checked(fields.take<std::uint64_t>(), 1, kMostBytes, "a chunk's size"), "a chunk's size");
  region.chunks = checked(fields.take<std::uint64_t>(), 1, kMostChunks, "chunks of a region");
  const auto slots = checked(fields.take<std::uint32_t>(), 1, kMostSlots, "slots of a region");
  for (std::uint64_t slot = 0; slot < slots; ++slot) {
    region.base.push_back(take_bases(fields, drives));
  }
  return region;
}

// Extents of each drive as (start, end). Checks that each is inside the drive, after its header,
// and overlaps no other.
class Occupied {
 public:
  explicit Occupied(const std::vector<DriveShare>& drives)
      : drives_(drives), extents_(drives.size()) {}

  // Adds `count` pieces of `bytes` each.
  void add(std::uint32_t drive, std::uint64_t base, std::uint64_t count, std::uint64_t bytes) {
    if (count == 0) return;
    const std::uint64_t end = drives_[drive].bytes;
    if (base < kFirstExtent || base > end || count > (end - base) / bytes) {
      throw Corrupt(concat("directory: ", count, " pieces of ", bytes, " bytes start at ", base,
                           " of drive ", drive, ", expected all between ", kFirstExtent, " and ",
                           end));
    }
    extents_[drive].emplace_back(base, base + count * bytes);
  }

  void check() {
    for (auto& extents : extents_) {
      std::ranges::sort(extents);
      for (std::size_t i = 1; i < extents.size(); ++i) {
        if (extents[i].first < extents[i - 1].second) {
          throw Corrupt(concat("directory: extents overlap at byte ", extents[i].first,
                               " of a drive; the directory is damaged"));
        }
      }
    }
  }

 private:
  const std::vector<DriveShare>& drives_;
  std::vector<std::vector<std::pair<std::uint64_t, std::uint64_t>>> extents_;
};

void check_extents(const Layout& layout) {
  Occupied occupied(layout.drives);
  const auto drives = static_cast<std::uint32_t>(layout.drives.size());
  for (const Region& region : layout.regions) {
    const Striping striping(region.chunks, layout.drives);
    for (const auto& bases : region.base) {
      for (std::uint32_t d = 0; d < drives; ++d) {
        occupied.add(d, bases[d], striping.count(d), region.chunk_bytes);
      }
    }
  }
  for (std::uint32_t d = 0; d < drives; ++d) {
    occupied.add(d, layout.spares.base[d], layout.spares.per_drive, layout.spares.chunk_bytes);
  }
  for (const MetaSlots* slots : {&layout.tables, &layout.run_states}) {
    for (const std::uint64_t base : slots->base) occupied.add(0, base, 1, slots->bytes);
  }
  occupied.check();
}

bool is_spare(const Spares& spares, const Place& place, std::uint64_t chunk_bytes) {
  if (place.drive >= spares.base.size() || chunk_bytes > spares.chunk_bytes) return false;
  const std::uint64_t base = spares.base[place.drive];
  return place.offset >= base && (place.offset - base) % spares.chunk_bytes == 0 &&
         (place.offset - base) / spares.chunk_bytes < spares.per_drive;
}

bool is_slot(const Region& region, const Striping& striping, std::uint64_t chunk,
             const Place& place) {
  for (std::uint64_t slot = 0; slot < region.slots(); ++slot) {
    if (home(region, striping, chunk, slot) == place) return true;
  }
  return false;
}

}  // namespace

std::vector<std::byte> encode(const Layout& layout) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(layout.drives.size()));
  for (const DriveShare& drive : layout.drives) {
    out.put(drive.bytes);
    out.put(drive.weight);
  }
  out.put(static_cast<std::uint32_t>(layout.regions.size()));
  for (const Region& region : layout.regions) {
    out.put(static_cast<std::uint32_t>(region.kind));
    out.put(region.chunk_bytes);
    out.put(region.chunks);
    out.put(static_cast<std::uint32_t>(region.slots()));
    for (const auto& bases : region.base) put(out, bases);
  }
  out.put(layout.spares.chunk_bytes);
  out.put(layout.spares.per_drive);
  put(out, layout.spares.base);
  put(out, layout.tables);
  put(out, layout.run_states);
  out.put(static_cast<std::uint64_t>(layout.catalogue.size()));
  out.put(std::span<const std::byte>(layout.catalogue));
  return out.take();
}

Layout decode_layout(std::span<const std::byte> bytes) {
  ByteReader fields(bytes, "directory");
  Layout layout;
  layout.drives.resize(checked(fields.take<std::uint32_t>(), 1, kMostDrives, "drives"));
  for (DriveShare& drive : layout.drives) {
    drive.bytes = checked(fields.take<std::uint64_t>(), kFirstExtent, kMostBytes, "a drive's size");
    drive.weight = static_cast<std::uint32_t>(
        checked(fields.take<std::uint32_t>(), 1, UINT32_MAX, "a drive's weight"));
  }
  const auto regions = checked(fields.take<std::uint32_t>(), 1, kMostRegions, "regions");
  std::uint64_t chunks = 0;
  for (std::uint64_t i = 0; i < regions; ++i) {
    layout.regions.push_back(take_region(fields, layout.drives.size()));
    chunks = checked(chunks + layout.regions.back().chunks, 1, kMostChunks, "chunks");
  }
  layout.spares.chunk_bytes = whole_blocks(
      checked(fields.take<std::uint64_t>(), 1, kMostBytes, "a spare's size"), "a spare's size");
  layout.spares.per_drive = checked(fields.take<std::uint64_t>(), 0, kMostChunks, "spares");
  layout.spares.base = take_bases(fields, layout.drives.size());
  layout.tables = take_meta(fields, "a table");
  layout.run_states = take_meta(fields, "a run state");
  const auto catalogue = fields.take(fields.take<std::uint64_t>());
  layout.catalogue.assign(catalogue.begin(), catalogue.end());
  if (fields.left() != 0) {
    throw Corrupt(concat("directory: ", fields.left(), " bytes follow its last field, expected 0"));
  }
  check_extents(layout);
  return layout;
}

std::vector<std::byte> encode(std::span<const Extent> table) {
  ByteWriter out;
  for (const Extent& chunk : table) {
    put(out, chunk.place);
    out.put(chunk.bytes);
    out.put(chunk.checksum);
  }
  return out.take();
}

std::vector<Extent> decode_table(std::span<const std::byte> bytes, const Layout& layout) {
  ByteReader fields(bytes, "table");
  std::vector<Extent> table;
  for (std::size_t r = 0; r < layout.regions.size(); ++r) {
    const Region& region = layout.regions[r];
    if (!region.is_committed()) continue;
    const Striping striping(region.chunks, layout.drives);
    for (std::uint64_t chunk = 0; chunk < region.chunks; ++chunk) {
      const Place place = take_place(fields);
      const auto length = fields.take<std::uint64_t>();
      const auto checksum = fields.take<std::uint64_t>();
      if (place && !is_slot(region, striping, chunk, place) &&
          !is_spare(layout.spares, place, region.chunk_bytes)) {
        throw Corrupt(concat("table: chunk ", chunk, " of region ", r, " is at ", place.offset,
                             " of drive ", place.drive, ", expected one of its slots or a spare"));
      }
      const bool whole = length % kBlockBytes == 0 && length <= region.chunk_bytes;
      if (!whole || (length == 0) == bool(place)) {
        throw Corrupt(concat("table: chunk ", chunk, " of region ", r, " has ", length,
                             " bytes, expected whole blocks up to ", region.chunk_bytes));
      }
      table.push_back({place, length, checksum});
    }
  }
  if (fields.left() != 0) {
    throw Corrupt(concat("table: ", fields.left(), " bytes follow its last entry, expected 0"));
  }
  return table;
}

}  // namespace sluiceway
