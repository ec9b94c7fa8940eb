// Everything that a store writes beside its chunks is read back unchanged, and no other bytes are
// accepted.
#include "runtime/store/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "kernels/base/checksum.h"
#include "runtime/store/byte_stream.h"
#include "runtime/store/new_layout.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

StoreId id_of(Rng& rng) {
  StoreId id;
  for (std::byte& byte : id) byte = static_cast<std::byte>(rng.below(256));
  return id;
}

Extent extent_of(Rng& rng) {
  return {{0, kBlockBytes * static_cast<std::uint64_t>(3 + rng.below(1 << 20))},
          static_cast<std::uint64_t>(rng.below(1 << 20)),
          rng.bits()};
}

Superblock superblock_of(Rng& rng, std::uint64_t generation) {
  Superblock superblock{id_of(rng), generation, extent_of(rng), {}, {}};
  superblock.live = {generation, rng.bits(), extent_of(rng), extent_of(rng)};
  if (rng.below(2) == 1) superblock.pinned = {1, rng.bits(), extent_of(rng), extent_of(rng)};
  return superblock;
}

// Seals a block as a writer of another version, or with other fields, would.
Block resealed(Block block) {
  ByteWriter sum;
  sum.put(checksum64(std::span(block).first(kBlockBytes - 8)));
  std::ranges::copy(sum.bytes(), block.end() - 8);
  return block;
}

Layout small_layout(std::uint64_t drives = 2) {
  Contents contents;
  contents.regions = {{RegionKind::kState, 3 * kBlockBytes, 5, 2},
                      {RegionKind::kGradient, kBlockBytes, 7, 3},
                      {RegionKind::kWeights, 2 * kBlockBytes, 4, 1}};
  contents.catalogue = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::vector<std::uint32_t> weights(drives, 1);
  weights.back() = 2;
  return new_layout(contents, weights);
}

std::vector<Extent> some_table(Rng& rng, const Layout& layout) {
  std::vector<Extent> table;
  for (const Region& region : layout.regions) {
    if (!region.is_committed()) continue;
    const Striping striping(region.chunks, layout.drives);
    for (std::uint64_t chunk = 0; chunk < region.chunks; ++chunk) {
      const auto slot =
          static_cast<std::uint64_t>(rng.below(static_cast<std::int64_t>(region.slots()) + 1));
      if (slot == region.slots()) {
        table.emplace_back();  // Never written.
      } else {
        table.push_back({home(region, striping, chunk, slot), kBlockBytes, rng.bits()});
      }
    }
  }
  return table;
}

TEST(StoreFormatTest, HeaderAndSuperblockComeBack) {
  Rng rng(20261122);
  for (int i = 0; i < 100; ++i) {
    const DriveHeader header{id_of(rng), static_cast<std::uint32_t>(rng.below(9)), 9};
    const DriveHeader found = decode_header(encode(header));
    EXPECT_EQ(found.id, header.id);
    EXPECT_EQ(found.drive, header.drive);
    EXPECT_EQ(found.drives, header.drives);
    const Superblock superblock = superblock_of(rng, rng.bits() | 1);
    EXPECT_EQ(decode_superblock(encode(superblock)), superblock);
  }
}

TEST(StoreFormatTest, EveryFlippedBitOfABlockIsSeen) {
  Rng rng(7);
  Block block = encode(superblock_of(rng, 9));
  for (std::size_t bit = 0; bit < 8 * kBlockBytes; ++bit) {
    const auto mask = static_cast<std::byte>(1U << (bit % 8));
    block[bit / 8] ^= mask;
    EXPECT_THROW(decode_superblock(block), Corrupt) << bit;
    block[bit / 8] ^= mask;
  }
  EXPECT_NO_THROW(decode_superblock(block));
}

TEST(StoreFormatTest, ABlockThatIsTornAtAnySectorIsSeen) {
  Rng rng(8);
  const Block old_block = encode(superblock_of(rng, 7)), new_block = encode(superblock_of(rng, 9));
  for (std::size_t cut = 512; cut < kBlockBytes; cut += 512) {
    Block torn = new_block;
    std::copy(old_block.begin() + static_cast<std::ptrdiff_t>(cut), old_block.end(),
              torn.begin() + static_cast<std::ptrdiff_t>(cut));
    EXPECT_THROW(decode_superblock(torn), Corrupt) << cut;
  }
}

TEST(StoreFormatTest, AVersionFromTheFutureIsNamed) {
  Block block = encode(DriveHeader{});
  block[8] = std::byte{7};
  EXPECT_THAT([&] { decode_header(resealed(block)); },
              ThrowsMessage<Unavailable>(HasSubstr("store version is 7, expected 1")));
}

TEST(StoreFormatTest, TheNewerSuperblockIsChosenAndDamageOfTheOtherIsSaid) {
  Rng rng(9);
  const Superblock older = superblock_of(rng, 6), newer = superblock_of(rng, 7);
  const Block a = encode(older), b = encode(newer), never{};
  EXPECT_EQ(choose_superblock(a, b).superblock, newer);
  EXPECT_EQ(choose_superblock(b, a).superblock, newer);
  EXPECT_EQ(choose_superblock(a, b).damage, "");
  EXPECT_EQ(choose_superblock(a, never).superblock, older);
  EXPECT_EQ(choose_superblock(never, b).damage, "");
  Block torn = b;
  torn[100] ^= std::byte{4};
  EXPECT_EQ(choose_superblock(a, torn).superblock, older);
  EXPECT_THAT(choose_superblock(a, torn).damage, HasSubstr("copy 1: superblock: its checksum"));
  EXPECT_THROW(choose_superblock(torn, torn), Corrupt);
  EXPECT_THAT([&] { choose_superblock(never, never); },
              ThrowsMessage<Corrupt>(HasSubstr("was never finished")));
}

TEST(StoreFormatTest, DirectoryComesBackByteForByte) {
  const Layout layout = small_layout();
  const std::vector<std::byte> bytes = encode(layout);
  EXPECT_EQ(encode(decode_layout(bytes)), bytes);
  const Layout grown = with_more_slots(layout, 0, 1);
  EXPECT_EQ(grown.regions[0].slots(), 3U);
  EXPECT_EQ(encode(decode_layout(encode(grown))), encode(grown));
}

TEST(StoreFormatTest, DirectoryThatEndsEarlyOrLateIsRefused) {
  const std::vector<std::byte> bytes = encode(small_layout());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(decode_layout(std::span(bytes).first(size)), Corrupt) << size;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  EXPECT_THAT([&] { decode_layout(longer); },
              ThrowsMessage<Corrupt>(HasSubstr("1 bytes follow its last")));
}

struct Damage {
  const char* name;
  std::function<void(Layout&)> act;
  const char* said;
};

class DamagedDirectoryTest : public testing::TestWithParam<Damage> {};

TEST_P(DamagedDirectoryTest, IsRefusedByName) {
  Layout layout = small_layout();
  GetParam().act(layout);
  const std::vector<std::byte> bytes = encode(layout);
  EXPECT_THAT([&] { decode_layout(bytes); }, ThrowsMessage<Corrupt>(HasSubstr(GetParam().said)));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, DamagedDirectoryTest,
    testing::Values(
        Damage{"Overlap", [](Layout& l) { l.regions[0].base[1] = l.regions[0].base[0]; },
               "overlap"},
        Damage{"OverTheSuperblock", [](Layout& l) { l.tables.base[0] = kBlockBytes; }, "pieces of"},
        Damage{"BeyondTheEnd", [](Layout& l) { l.regions[2].base[0][1] += kBlockBytes << 20; },
               "pieces of"},
        Damage{"Unaligned", [](Layout& l) { l.spares.base[0] += 512; }, "multiple of 4096"},
        Damage{"HalfABlock", [](Layout& l) { l.regions[1].chunk_bytes = 2048; },
               "multiple of 4096"},
        Damage{"NoChunks", [](Layout& l) { l.regions[1].chunks = 0; }, "expected 1 to"},
        Damage{"TooManyChunks", [](Layout& l) { l.regions[1].chunks = 1ULL << 60; },
               "expected 1 to"},
        Damage{"UnknownKind", [](Layout& l) { l.regions[1].kind = static_cast<RegionKind>(9); },
               "of kind 9"},
        Damage{"NoDrives", [](Layout& l) { l.drives.clear(); }, "drives is 0"},
        Damage{"NoWeight", [](Layout& l) { l.drives[0].weight = 0; }, "weight is 0"}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST(StoreFormatTest, TableComesBackAndNamesWhatIsNoPlaceOfItsChunk) {
  Rng rng(11);
  const Layout layout = small_layout();
  std::vector<Extent> table = some_table(rng, layout);
  EXPECT_EQ(decode_table(encode(table), layout), table);
  table[3] = {{1, layout.spares.base[1] + layout.spares.chunk_bytes}, kBlockBytes, 7};
  EXPECT_EQ(decode_table(encode(table), layout), table);
  table[3].place.offset += kBlockBytes;  // Inside a spare.
  EXPECT_THAT([&] { decode_table(encode(table), layout); },
              ThrowsMessage<Corrupt>(HasSubstr("chunk 3 of region 0")));
  table[3].place.offset -= kBlockBytes;
  table[3].bytes = 4 * kBlockBytes;  // A chunk has three.
  EXPECT_THAT(
      [&] { decode_table(encode(table), layout); },
      ThrowsMessage<Corrupt>(HasSubstr("has 16384 bytes, expected whole blocks up to 12288")));
  table[3].bytes = 100;
  EXPECT_THROW(decode_table(encode(table), layout), Corrupt);
  table[3].bytes = 0;
  EXPECT_THROW(decode_table(encode(table), layout), Corrupt);
  table[3] = {};
  EXPECT_NO_THROW(decode_table(encode(table), layout));
  table.pop_back();
  EXPECT_THROW(decode_table(encode(table), layout), Corrupt);
}

TEST(StripingTest, DrivesGetTheirWeightAndNeverDriftFromIt) {
  const std::vector<DriveShare> drives{{0, 3}, {0, 1}, {0, 2}};
  const Striping striping(601, drives);
  std::vector<std::uint64_t> count(3);
  for (std::uint64_t chunk = 0; chunk < 601; ++chunk) {
    EXPECT_EQ(striping.rank(chunk), count[striping.drive(chunk)]++);
    for (std::size_t d = 0; d < 3; ++d) {
      const double fair = static_cast<double>(chunk + 1) * drives[d].weight / 6;
      EXPECT_NEAR(static_cast<double>(count[d]), fair, 1.001);
    }
  }
  for (std::uint32_t d = 0; d < 3; ++d) EXPECT_EQ(striping.count(d), count[d]);
}

// The bytes that this version writes: if they change, the version must change.
TEST(StoreFormatTest, BytesAreThoseOfVersionOne) {
  const StoreId id{std::byte{0xab}};
  EXPECT_EQ(checksum64(encode(DriveHeader{id, 1, 2})), 14523350205102006619U);
  const Superblock superblock{id,
                              5,
                              {{0, 3 * kBlockBytes}, 100, 1},
                              {5, 4, {{0, 4 * kBlockBytes}, 16, 2}, {{0, 5 * kBlockBytes}, 0, 3}},
                              {}};
  EXPECT_EQ(checksum64(encode(superblock)), 742090738784619360U);
  EXPECT_EQ(checksum64(encode(small_layout())), 1616714970995928555U);
}

}  // namespace
}  // namespace sluiceway::test
