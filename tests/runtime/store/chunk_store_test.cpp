// Steps of a store are whole: what was committed is found again, and nothing else.
#include "runtime/store/chunk_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "kernels/base/error.h"
#include "runtime/memory/budget.h"
#include "runtime/store/format.h"
#include "runtime/store/new_layout.h"
#include "tests/support/fault_io.h"
#include "tests/support/power_cut_io.h"
#include "tests/support/small_run.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

// Media that outlive their stores, with faults between the two.
class ChunkStoreTest : public testing::Test {
 protected:
  using Medium = PowerCutIo::Medium;

  void make(std::uint32_t drives = 1, std::uint32_t slots = 2) {
    layout = run_layout(drives, slots);
    media.clear();
    for (const DriveShare& drive : layout.drives) {
      media.push_back(std::make_shared<Medium>(drive.bytes));
    }
    store = ChunkStore::create(budget, drives_of(), layout);
  }

  ChunkStore::Drives drives_of() {
    ChunkStore::Drives drives;
    faults.clear();
    for (const auto& medium : media) {
      auto fault =
          std::make_unique<FaultIo>(std::make_unique<PowerCutIo>(medium, PowerCutIo::Options{}));
      faults.push_back(fault.get());
      Drive::Options options;
      options.first_pause = std::chrono::milliseconds(0);
      drives.push_back(std::make_unique<Drive>(std::move(fault), options));
    }
    return drives;
  }

  void reopen() {
    store.reset();
    store = ChunkStore::open(budget, drives_of());
  }

  void step(std::uint64_t number) {
    ASSERT_EQ(write_step(*store, number), "");
    store->commit(number, run_state_of(number));
  }

  void flip(std::size_t drive, std::uint64_t offset) { (*media[drive])[offset] ^= std::byte{16}; }

  Place place_of(std::uint64_t chunk) {
    const auto bytes = std::span(*media[0]);
    const Extent table = store->live().table;
    const auto entries = decode_table(bytes.subspan(table.place.offset, table.bytes), layout);
    return entries.at(chunk).place;
  }

  Budget budget = Budget::unlimited();
  Layout layout;
  std::vector<std::shared_ptr<Medium>> media;
  std::vector<FaultIo*> faults;
  std::unique_ptr<ChunkStore> store;
};

TEST_F(ChunkStoreTest, ANewStoreIsOfStepNoughtAndHoldsNoChunk) {
  make();
  EXPECT_EQ(store->live().step, 0U);
  reopen();
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  const ChunkMemory memory;
  EXPECT_THAT(
      [&] {
        store->read({0, 3}, Version::kLive, memory.bytes(), [](const std::exception_ptr&) {});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("chunk 3 of region 0 (state) was never")));
}

class ChunkStoreDrivesTest : public ChunkStoreTest,
                             public testing::WithParamInterface<std::uint32_t> {};

TEST_P(ChunkStoreDrivesTest, EveryStepIsFoundAgain) {
  make(GetParam());
  for (std::uint64_t number = 1; number < 9; ++number) {
    step(number);
    reopen();
    EXPECT_EQ(store->live().step, number);
    EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  }
  EXPECT_THAT(store->verify(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Drives, ChunkStoreDrivesTest, testing::Values(1U, 2U, 3U));

TEST_F(ChunkStoreTest, WhatIsNotCommittedIsGone) {
  make();
  step(1);
  ASSERT_EQ(write_step(*store, 2), "");
  const ChunkMemory memory;
  const auto read = [&](Version version) {
    return outcome_of([&](ChunkStore::Done done) {
      store->read({0, 0}, version, memory.bytes(), std::move(done));
    });
  };
  EXPECT_EQ(read(Version::kStaged), "");
  EXPECT_TRUE(memory.is_of(last_written(2, 0), 0));
  EXPECT_EQ(read(Version::kLive), "");
  EXPECT_TRUE(memory.is_of(1, 0)) << "the live version is the commit";
  store->drop();
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  ASSERT_EQ(write_step(*store, 2), "");
  reopen();
  EXPECT_EQ(store->live().step, 1U);
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
}

TEST_F(ChunkStoreTest, APinnedStepStaysUntilTheNextPin) {
  make(2, 3);
  step(1);
  store->pin();
  for (std::uint64_t number = 2; number < 7; ++number) {
    step(number);
    if (number % 2 == 0) reopen();
    ASSERT_TRUE(store->pinned().has_value());
    EXPECT_EQ(store->pinned()->step, 1U);
    EXPECT_EQ(difference(*store, Version::kPinned, *store->pinned()), "");
    EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  }
  store->pin();
  step(7);
  reopen();
  EXPECT_EQ(store->pinned()->step, 6U);
  EXPECT_EQ(difference(*store, Version::kPinned, *store->pinned()), "");
  EXPECT_THAT(store->verify(), IsEmpty());
  store->unpin();
  reopen();
  EXPECT_FALSE(store->pinned().has_value());
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
}

TEST_F(ChunkStoreTest, APinNeedsAThirdSlotAndAStoreCanGrowOne) {
  make(2);
  step(1);
  EXPECT_THAT([&] { store->pin(); }, ThrowsMessage<InvalidArgument>(HasSubstr("add_slots()")));
  store->add_slots(0, 1);
  step(2);
  store->pin();
  step(3);
  reopen();
  step(4);
  reopen();
  EXPECT_EQ(difference(*store, Version::kPinned, *store->pinned()), "");
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  EXPECT_EQ(store->live().step, 4U);
}

TEST_F(ChunkStoreTest, ExtentsOfMicroBatchesAreReadBackInTheirStep) {
  make();
  store->add_slots(1, 1);
  ChunkMemory memory(kBlockBytes);
  for (std::uint64_t slot = 0; slot < 3; ++slot) {
    memory.fill(slot, 5);
    EXPECT_EQ(outcome_of([&](ChunkStore::Done done) {
                store->write_extent({1, 5}, slot, memory.bytes(), std::move(done));
              }),
              "");
  }
  for (std::uint64_t slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(outcome_of([&](ChunkStore::Done done) {
                store->read_extent({1, 5}, slot, memory.bytes(), std::move(done));
              }),
              "");
    EXPECT_TRUE(memory.is_of(slot, 5));
  }
  store->drop();
  EXPECT_THROW(store->read_extent({1, 5}, 0, memory.bytes(), [](const std::exception_ptr&) {}),
               InvalidArgument);
}

TEST_F(ChunkStoreTest, AFlippedBitOfAChunkIsAnErrorWithItsName) {
  make();
  step(1);
  const Place place = place_of(4);
  reopen();
  store.reset();
  flip(0, place.offset + 1234);
  store = ChunkStore::open(budget, drives_of());
  EXPECT_THAT(difference(*store, Version::kLive, store->live()),
              AllOf(HasSubstr("chunk 4 of region 0 (state)"), HasSubstr("checksum")));
  EXPECT_THAT(store->verify(), ElementsAre(HasSubstr("chunk 4")));
}

TEST_F(ChunkStoreTest, AFlippedBitOfARunStateIsFoundByVerify) {
  make();
  step(1);
  EXPECT_THAT(store->verify(), IsEmpty());
  const Place place = store->live().run_state.place;
  store.reset();
  flip(0, place.offset + 3);
  store = ChunkStore::open(budget, drives_of());
  EXPECT_THAT(store->verify(), ElementsAre(HasSubstr("the run state")));
}

TEST_F(ChunkStoreTest, FlippedBitsOfWhatIsNoChunkAreSeen) {
  make();
  step(1);
  const Commit live = store->live();
  const auto expect = [&](std::uint64_t offset, const std::string& said) {
    store.reset();
    flip(0, offset);
    EXPECT_THAT([&] { ChunkStore::open(budget, drives_of()); },
                ThrowsMessage<Corrupt>(HasSubstr(said)));
    flip(0, offset);
  };
  expect(kHeaderOffset + 20, "drive header: its checksum");
  expect(live.table.place.offset + 3, "the table");
  expect(first_directory_place().offset + 9, "the directory");
  store.reset();
  flip(0, kHeaderOffset);
  EXPECT_THAT([&] { ChunkStore::open(budget, drives_of()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("is no store")));
  flip(0, kHeaderOffset);
  reopen();
  const std::uint64_t newest = kSuperblockOffset + store->generation() % 2 * kBlockBytes;
  store.reset();
  flip(0, newest + 30);
  store = ChunkStore::open(budget, drives_of());
  EXPECT_EQ(store->live().step, 0U) << "one step back";
  EXPECT_THAT(store->verify(), ElementsAre(HasSubstr("superblock: its checksum")));
}

TEST_F(ChunkStoreTest, ATruncatedDriveIsNamedWithBothSizes) {
  make();
  step(1);
  store.reset();
  const std::size_t size = media[0]->size();
  media[0]->resize(size - kBlockBytes);
  EXPECT_THAT([&] { ChunkStore::open(budget, drives_of()); },
              ThrowsMessage<Corrupt>(AllOf(HasSubstr(std::to_string(size - kBlockBytes)),
                                           HasSubstr(std::to_string(size)))));
  media[0]->resize(100);
  EXPECT_THAT([&] { ChunkStore::open(budget, drives_of()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("100 bytes")));
}

TEST_F(ChunkStoreTest, DrivesInAnotherOrderOrOfAnotherStoreAreRefused) {
  make(2);
  store.reset();
  std::swap(media[0], media[1]);
  EXPECT_THAT([&] { ChunkStore::open(budget, drives_of()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("drive 1 of 2")));
  std::swap(media[0], media[1]);
  const auto foreign = media[1];
  make(2);
  store.reset();
  media[1] = foreign;
  EXPECT_THAT([&] { ChunkStore::open(budget, drives_of()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("of store")));
}

TEST_F(ChunkStoreTest, AChunkThatCannotBeWrittenGoesToASpareAndIsFoundThere) {
  make(2);
  step(1);
  faults[0]->fail(IoKind::kWrite, {faults[0]->submitted(IoKind::kWrite) + 1, 1}, EIO);
  step(2);
  EXPECT_EQ(store->relocated(), 1U);
  step(3);
  reopen();
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  step(4);
  step(5);
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
}

TEST_F(ChunkStoreTest, WithoutASpareTheWriteFailsAndTheLastCommitStays) {
  make();
  step(1);
  faults[0]->fail(IoKind::kWrite, FaultIo::kAlways, ENOSPC);
  EXPECT_THAT(write_step(*store, 2), HasSubstr("No space left"));
  EXPECT_THROW(store->commit(2, run_state_of(2)), IoError);
  faults[0]->fail(IoKind::kWrite, {1, 0}, 0);
  EXPECT_EQ(store->live().step, 1U);
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
  reopen();
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
}

TEST_F(ChunkStoreTest, AFailedReadIsAnErrorAndNeverAnOlderContent) {
  make();
  step(1);
  step(2);
  faults[0]->fail(IoKind::kRead, FaultIo::kAlways, EIO);
  EXPECT_THAT(difference(*store, Version::kLive, store->live()),
              AllOf(HasSubstr("chunk"), HasSubstr("nput/output error")));
}

TEST_F(ChunkStoreTest, AfterASuperblockThatMayBeThereOnlyOpeningHelps) {
  make();
  step(1);
  ASSERT_EQ(write_step(*store, 2), "");
  const std::uint64_t writes = faults[0]->submitted(IoKind::kWrite);
  faults[0]->tear({writes + 3, 1}, EIO);  // Table, run state, superblock.
  EXPECT_THROW(store->commit(2, run_state_of(2)), IoError);
  EXPECT_THAT([&] { store->commit(2, run_state_of(2)); },
              ThrowsMessage<InvalidArgument>(HasSubstr("reopen the store")));
  reopen();
  EXPECT_EQ(store->live().step, 1U);
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
}

TEST_F(ChunkStoreTest, AFlushThatFailsIsNotTriedAgain) {
  make();
  step(1);
  ASSERT_EQ(write_step(*store, 2), "");
  faults[0]->fail_flush(FaultIo::kAlways, EIO);
  EXPECT_THROW(store->commit(2, run_state_of(2)), IoError);
  EXPECT_THROW(store->commit(2, run_state_of(2)), Error);
  reopen();
  EXPECT_EQ(store->live().step, 1U);
  EXPECT_EQ(difference(*store, Version::kLive, store->live()), "");
}

TEST_F(ChunkStoreTest, AChunkMayBeShorterThanItsPlace) {
  make();
  ChunkMemory memory;
  memory.fill(1, 2);
  const auto first = memory.bytes().first(kBlockBytes);
  EXPECT_EQ(outcome_of([&](ChunkStore::Done done) {
              store->write({0, 2}, first, std::move(done));
            }),
            "");
  store->commit(1, {});
  reopen();
  EXPECT_EQ(store->written_bytes({0, 2}, Version::kLive), kBlockBytes);
  EXPECT_THAT(
      [&] {
        store->read({0, 2}, Version::kLive, memory.bytes(), [](const std::exception_ptr&) {});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("8192 bytes, expected the 4096")));
  const ChunkMemory read;
  EXPECT_EQ(outcome_of([&](ChunkStore::Done done) {
              store->read({0, 2}, Version::kLive, read.bytes().first(kBlockBytes), std::move(done));
            }),
            "");
  EXPECT_TRUE(std::ranges::equal(read.bytes().first(kBlockBytes), first));
  EXPECT_THAT(store->verify(), IsEmpty());
  for (const std::size_t size : {std::size_t{0}, std::size_t{512}, std::size_t{5 * kBlockBytes}}) {
    const ChunkMemory large(8 * kBlockBytes);
    EXPECT_THROW(store->write({0, 2}, large.bytes().first(size), [](const std::exception_ptr&) {}),
                 InvalidArgument);
  }
}

TEST_F(ChunkStoreTest, ARunStateThatIsTooLargeSaysBothCounts) {
  make();
  const std::vector<std::byte> large(kBlockBytes + 1);
  EXPECT_THAT([&] { store->commit(1, large); },
              ThrowsMessage<InvalidArgument>(HasSubstr("4097 bytes, expected at most 4096")));
}

}  // namespace
}  // namespace sluiceway::test
