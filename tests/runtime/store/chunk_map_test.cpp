// A chunk is never written over its place in a commit, in any order of steps, pins and failures.
#include "runtime/store/chunk_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/store/new_layout.h"
#include "tests/support/rng.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint64_t kChunks = 5, kExtents = 3;

Layout layout_of(std::uint32_t slots, std::uint64_t spares = 2) {
  Contents contents;
  contents.regions = {{RegionKind::kState, kBlockBytes, kChunks, slots},
                      {RegionKind::kGradient, kBlockBytes, 4, kExtents}};
  contents.spares_per_drive = spares;
  return new_layout(contents, {2, 1});
}

ChunkMap map_of(const Layout& layout) {
  return {layout, std::vector<Extent>(committed_chunks(layout)), std::nullopt};
}

void write(ChunkMap& map, ChunkId id, std::uint64_t checksum) {
  map.end_write(id, {map.begin_write(id), kBlockBytes, checksum});
}

TEST(ChunkMapTest, AStepGoesToTheSlotThatTheLastCommitDoesNotHold) {
  ChunkMap map = map_of(layout_of(2));
  for (std::uint64_t step = 1; step < 6; ++step) {
    const Extent before = map.live({0, 1});
    write(map, {0, 1}, step);
    EXPECT_EQ(map.live({0, 1}), before);
    EXPECT_NE(map.staged({0, 1})->place, before.place);
    map.commit();
    EXPECT_EQ(map.live({0, 1}).checksum, step);
    EXPECT_FALSE(map.staged({0, 1}).has_value());
  }
  EXPECT_FALSE(map.live({0, 0}).place) << "nothing was written there";
}

TEST(ChunkMapTest, WhatIsDroppedIsWrittenAgainToTheSamePlace) {
  ChunkMap map = map_of(layout_of(2));
  write(map, {0, 2}, 1);
  map.commit();
  write(map, {0, 2}, 2);
  const Place first = map.staged({0, 2})->place;
  map.drop();
  EXPECT_EQ(map.live({0, 2}).checksum, 1U);
  write(map, {0, 2}, 3);
  EXPECT_EQ(map.staged({0, 2})->place, first);
  EXPECT_EQ(map.begin_write({0, 2}), first) << "a second write in one step replaces the staged one";
}

// Compares with a model that remembers every place a commit holds.
TEST(ChunkMapTest, NoWriteEverTouchesALiveOrAPinnedPlace) {
  Rng rng(20261122);
  for (int run = 0; run < 40; ++run) {
    const Layout layout = layout_of(3, 4);
    ChunkMap map = map_of(layout);
    std::vector<Extent> pinned;
    std::uint64_t sum = 0;
    for (int act = 0; act < 400; ++act) {
      const ChunkId id{0, static_cast<std::uint64_t>(rng.below(kChunks))};
      switch (rng.below(12)) {
        case 0:
          map.commit();
          break;
        case 1:
          map.drop();
          break;
        case 2:
          map.pin();
          break;
        case 3:
          map.unpin();
          break;
        default: {
          Place place = map.begin_write(id);
          if (rng.below(60) == 0) {
            const auto spare = map.relocate(id, place);
            if (!spare) continue;
            place = *spare;
          }
          EXPECT_NE(place, map.live(id).place);
          if (map.has_pin()) {
            EXPECT_NE(place, map.pinned(id).place);
          }
          map.end_write(id, {place, kBlockBytes, ++sum});
        }
      }
      std::set<Place> held;
      for (std::uint64_t chunk = 0; chunk < kChunks; ++chunk) {
        if (map.staged({0, chunk})) {
          EXPECT_TRUE(held.insert(map.staged({0, chunk})->place).second);
        }
        if (map.live({0, chunk}).place) {
          EXPECT_TRUE(held.insert(map.live({0, chunk}).place).second);
        }
      }
      EXPECT_EQ(decode_table(encode(map.next_table()), layout), map.next_table());
    }
  }
}

TEST(ChunkMapTest, TwoSlotsCannotHoldAPinAndBeWritten) {
  ChunkMap map = map_of(layout_of(2, 0));
  write(map, {0, 0}, 1);
  map.commit();
  map.pin();
  write(map, {0, 0}, 2);
  map.commit();
  EXPECT_THAT(
      [&] {
        map.begin_write({0, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("add a slot to the region, or unpin")));
  map.grown(layout_of(3, 0));
  EXPECT_NO_THROW(map.begin_write({0, 0}));
}

TEST(ChunkMapTest, ASlotThatFailedIsNotTriedAgainAndASpareIsGivenOnce) {
  ChunkMap map = map_of(layout_of(2, 1));  // One spare on each of two drives.
  const Place failed = map.begin_write({0, 0});
  const auto spare = map.relocate({0, 0}, failed);
  ASSERT_TRUE(spare.has_value());
  EXPECT_EQ(spare->drive, failed.drive) << "the drive's own spare comes first";
  const Place other = map.begin_write({0, 1});
  const auto second = map.relocate({0, 1}, other);
  ASSERT_TRUE(second.has_value());
  EXPECT_NE(*second, *spare) << "the first is still being written";
  EXPECT_FALSE(map.relocate({0, 2}, map.begin_write({0, 2})).has_value());
  map.end_write({0, 0}, {*spare, kBlockBytes, 1});
  map.commit();
  EXPECT_NE(map.begin_write({0, 0}), failed);
  EXPECT_NE(map.begin_write({0, 0}), *spare);
}

TEST(ChunkMapTest, ExtentsLiveForOneStep) {
  ChunkMap map = map_of(layout_of(2));
  for (std::uint64_t slot = 0; slot < kExtents; ++slot) {
    map.end_extent({1, 3}, slot, {map.begin_extent({1, 3}, slot), kBlockBytes, slot + 1});
  }
  for (std::uint64_t slot = 0; slot < kExtents; ++slot) {
    EXPECT_EQ(map.extent({1, 3}, slot).checksum, slot + 1);
    EXPECT_FALSE(map.extent({1, 2}, slot).place);
  }
  const Place home = map.extent({1, 3}, 0).place;
  map.commit();
  EXPECT_FALSE(map.extent({1, 3}, 0).place);
  EXPECT_EQ(map.begin_extent({1, 3}, 0), home);
  map.relocate({1, 3}, home);
  EXPECT_NE(map.begin_extent({1, 3}, 0), home) << "the place is not used again";
}

TEST(ChunkMapTest, NamesWhatThereIsNot) {
  ChunkMap map = map_of(layout_of(2));
  EXPECT_THAT(
      [&] {
        map.begin_write({0, kChunks});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("chunk 5 of region 0, expected a number below 5")));
  EXPECT_THAT(
      [&] {
        map.begin_write({2, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("region 2, expected a number below 2")));
  EXPECT_THAT(
      [&] {
        map.begin_write({1, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("holds gradient")));
  EXPECT_THAT(
      [&] {
        map.begin_extent({1, 0}, kExtents);
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("slot 3 of chunk 0")));
  EXPECT_THAT(
      [&] {
        map.pinned({0, 0});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("no version is pinned")));
}

}  // namespace
}  // namespace sluiceway::test
