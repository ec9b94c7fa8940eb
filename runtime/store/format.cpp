#include "runtime/store/format.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/byte_stream.h"
#include "runtime/store/place_bytes.h"

namespace sluiceway {
namespace {

constexpr std::string_view kHeaderMagic = "SLUICEWY";
constexpr std::string_view kSuperblockMagic = "SLUICESB";
constexpr std::size_t kSumOffset = kBlockBytes - sizeof(std::uint64_t);

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Pads with zeros; the last eight bytes are the checksum of all before them.
Block sealed(const ByteWriter& fields) {
  Block block{};
  std::copy(fields.bytes().begin(), fields.bytes().end(), block.begin());
  ByteWriter sum;
  sum.put(checksum64(std::span(block).first(kSumOffset)));
  std::copy(sum.bytes().begin(), sum.bytes().end(), block.begin() + kSumOffset);
  return block;
}

// Checks the checksum of a block and returns a reader of its fields after magic and version.
ByteReader opened(std::span<const std::byte> block, std::string_view magic, std::string what) {
  if (block.size() != kBlockBytes) {
    throw Corrupt(concat(what, ": is ", block.size(), " bytes, expected ", kBlockBytes));
  }
  ByteReader fields(block, std::move(what));
  if (!std::ranges::equal(fields.take(magic.size()), as_bytes(magic))) {
    throw Corrupt(concat(fields.what(), ": does not begin with ", magic, ", so it is no store"));
  }
  const auto found = ByteReader(block.subspan(kSumOffset), fields.what()).take<std::uint64_t>();
  const std::uint64_t expected = checksum64(block.first(kSumOffset));
  const auto version = fields.take<std::uint32_t>();
  // A future version must keep the checksum in its place; otherwise the block counts as no store.
  if (found != expected) {
    throw Corrupt(concat(fields.what(), ": its checksum is ", to_hex(found), ", expected ",
                         to_hex(expected)));
  }
  if (version != kStoreVersion) {
    throw Unavailable(concat(fields.what(), ": store version is ", version, ", expected ",
                             kStoreVersion, "; open it with the version that made it"));
  }
  return fields;
}

StoreId take_id(ByteReader& fields) {
  StoreId id;
  std::ranges::copy(fields.take(id.size()), id.begin());
  return id;
}

void put(ByteWriter& out, const Extent& extent) {
  put(out, extent.place);
  out.put(extent.bytes);
  out.put(extent.checksum);
}

Extent take_extent(ByteReader& fields) {
  const Place place = take_place(fields);
  const auto bytes = fields.take<std::uint64_t>();
  return {place, bytes, fields.take<std::uint64_t>()};
}

void put(ByteWriter& out, const Commit& commit) {
  out.put(commit.generation);
  out.put(commit.step);
  put(out, commit.table);
  put(out, commit.run_state);
}

Commit take_commit(ByteReader& fields, std::uint64_t newest) {
  const auto generation = fields.take<std::uint64_t>();
  const auto step = fields.take<std::uint64_t>();
  const Extent table = take_extent(fields);
  const Extent run_state = take_extent(fields);
  if (generation == 0 || generation > newest) {
    throw Corrupt(
        concat(fields.what(), ": holds generation ", generation, ", expected 1 to ", newest));
  }
  return {generation, step, table, run_state};
}

}  // namespace

std::string to_hex(const StoreId& id) {
  std::string text;
  for (const std::byte byte : id) text += to_hex(std::to_integer<std::uint8_t>(byte));
  return text;
}

Block encode(const DriveHeader& header) {
  ByteWriter out;
  out.put(as_bytes(kHeaderMagic));
  out.put(kStoreVersion);
  out.put(header.id);
  out.put(header.drive);
  out.put(header.drives);
  return sealed(out);
}

bool is_drive_header(std::span<const std::byte> block) noexcept {
  return block.size() >= kHeaderMagic.size() &&
         std::ranges::equal(block.first(kHeaderMagic.size()), as_bytes(kHeaderMagic));
}

DriveHeader decode_header(std::span<const std::byte> block) {
  ByteReader fields = opened(block, kHeaderMagic, "drive header");
  DriveHeader header;
  header.id = take_id(fields);
  header.drive = fields.take<std::uint32_t>();
  header.drives = fields.take<std::uint32_t>();
  if (header.drives == 0 || header.drives > kMostDrives || header.drive >= header.drives) {
    throw Corrupt(concat("drive header: is drive ", header.drive, " of ", header.drives,
                         ", expected a drive of 1 to ", kMostDrives));
  }
  return header;
}

Block encode(const Superblock& superblock) {
  ByteWriter out;
  out.put(as_bytes(kSuperblockMagic));
  out.put(kStoreVersion);
  out.put(superblock.id);
  out.put(superblock.generation);
  put(out, superblock.directory);
  put(out, superblock.live);
  out.put(static_cast<std::uint8_t>(superblock.pinned ? 1 : 0));
  if (superblock.pinned) put(out, *superblock.pinned);
  return sealed(out);
}

Superblock decode_superblock(std::span<const std::byte> block) {
  ByteReader fields = opened(block, kSuperblockMagic, "superblock");
  Superblock superblock;
  superblock.id = take_id(fields);
  superblock.generation = fields.take<std::uint64_t>();
  superblock.directory = take_extent(fields);
  superblock.live = take_commit(fields, superblock.generation);
  const auto pins = fields.take<std::uint8_t>();
  if (pins > 1) throw Corrupt(concat("superblock: has ", int{pins}, " pins, expected 0 or 1"));
  if (pins == 1) superblock.pinned = take_commit(fields, superblock.generation);
  return superblock;
}

ChosenSuperblock choose_superblock(std::span<const std::byte> copy0,
                                   std::span<const std::byte> copy1) {
  std::optional<Superblock> found;
  std::string damage;
  const std::array copies{copy0, copy1};
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (std::ranges::all_of(copies[i], [](std::byte b) { return b == std::byte{0}; })) continue;
    try {
      const Superblock one = decode_superblock(copies[i]);
      if (!found || one.generation > found->generation) found = one;
    } catch (const Corrupt& error) {
      damage += concat(damage.empty() ? "" : "; ", "copy ", i, ": ", error.what());
    }
  }
  if (!found) {
    throw Corrupt(concat("superblock: neither copy can be read (",
                         damage.empty() ? "the store was never finished" : damage, ")"));
  }
  return {*found, damage};
}

}  // namespace sluiceway
