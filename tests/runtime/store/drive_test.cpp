// Drive: a request ends whole or with an error; the same test bodies over every back end.
#include "runtime/store/drive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBlock = 4096;

struct DriveCase {
  std::string back_end;
  std::size_t depth;
};

std::vector<DriveCase> cases() {
  std::vector<DriveCase> all;
  for (const std::string& name : io_back_ends()) {
    all.push_back({name, 1});
    all.push_back({name, 64});
  }
  return all;
}

class DriveTest : public testing::TestWithParam<DriveCase> {
 protected:
  void open(std::size_t blocks) {
    opened = open_back_end(GetParam().back_end, blocks * kBlock, GetParam().depth);
    drive = std::make_unique<Drive>(std::move(opened.io));
  }
  OpenedBackEnd opened;
  std::unique_ptr<Drive> drive;
  Rng rng{20240611};
};

TEST_P(DriveTest, OneBlockIsWrittenAndReadBack) {
  open(1);
  const AlignedBytes written(kBlock, rng), read(kBlock);
  drive->write_now(0, written.span(), "block");
  drive->flush();
  drive->read_now(0, read.span(), "block");
  EXPECT_EQ(written, read);
  EXPECT_GE(drive->counters().bytes_written, kBlock);
}

TEST_P(DriveTest, EmptyRequestEndsAndTransfersNothing) {
  open(1);
  drive->write_now(0, {}, "nothing");
  drive->read_now(kBlock, {}, "nothing at the end");
  EXPECT_EQ(drive->counters().bytes_written + drive->counters().bytes_read, 0U);
  EXPECT_EQ(drive->counters().reads, 1U);
}

TEST_P(DriveTest, MisalignedOffsetLengthOrAddressIsRefusedBeforeAnythingIsSubmitted) {
  open(4);
  const std::size_t unit = drive->properties().offset_alignment;
  const AlignedBytes bytes(2 * kBlock);
  std::atomic<int> called{0};
  const auto count = [&](const IoError*) { ++called; };
  EXPECT_THAT([&] { drive->read(unit - 1, bytes.span(0, unit), "chunk 7", count); },
              ThrowsMessage<InvalidArgument>(AllOf(
                  HasSubstr("read of chunk 7"), HasSubstr("at byte " + std::to_string(unit - 1)),
                  HasSubstr("multiples of " + std::to_string(unit)))));
  EXPECT_THAT([&] { drive->write(0, bytes.span(0, unit + 1), "chunk 7", count); },
              ThrowsMessage<InvalidArgument>(HasSubstr(std::to_string(unit + 1) + " bytes")));
  EXPECT_THAT([&] { drive->write(0, bytes.span(1, unit), "chunk 7", count); },
              ThrowsMessage<InvalidArgument>(HasSubstr("memory at ")));
  EXPECT_EQ(drive->in_flight(), 0U);
  EXPECT_EQ(called, 0);
}

TEST_P(DriveTest, RequestBeyondTheEndIsRefused) {
  open(4);
  const AlignedBytes bytes(2 * kBlock);
  for (const std::uint64_t offset : {3 * kBlock, 4 * kBlock, UINT64_MAX / kBlock * kBlock}) {
    EXPECT_THAT([&] { drive->read_now(offset, bytes.span(), "chunk"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("within the 16384 bytes")));
  }
}

TEST_P(DriveTest, CountersAreExact) {
  open(16);
  const AlignedBytes bytes(16 * kBlock, rng);
  drive->write_now(0, bytes.span(), "all");
  drive->read_now(kBlock, bytes.span(0, 3 * kBlock), "three");
  drive->flush();
  const Drive::Counters counters = drive->counters();
  EXPECT_EQ(counters.writes, 1U);
  EXPECT_EQ(counters.reads, 1U);
  EXPECT_EQ(counters.flushes, 1U);
  EXPECT_EQ(counters.bytes_read, 3 * kBlock);
  // The first write of this back end ends after 4097 bytes, so one byte is written again.
  const bool is_short = GetParam().back_end == "fault";
  EXPECT_EQ(counters.resumed, is_short ? 1U : 0U);
  EXPECT_EQ(counters.bytes_written, 16 * kBlock + (is_short ? 1 : 0));
  EXPECT_EQ(counters.retries + counters.stuck + counters.failed, 0U);
}

// Sends random requests from several threads, each with its own blocks, and compares with an image
// in memory.
TEST_P(DriveTest, ThousandsOfRandomRequestsFromSeveralThreadsAgreeWithAnImage) {
  constexpr std::size_t kThreads = 3, kRegion = 64, kRounds = 50, kBatch = 12;
  open(kThreads * kRegion);
  const AlignedBytes image(kThreads * kRegion * kBlock);
  const auto work = [&](std::size_t thread) {
    Rng random(20240611 + thread);
    for (std::size_t round = 0; round < kRounds; ++round) {
      std::vector<AlignedBytes> buffers;
      Countdown left(kBatch);
      const auto done = [&](const IoError* error) {
        EXPECT_EQ(error, nullptr) << error->what();
        left.down();
      };
      const bool writes = round % 2 == 0;
      std::vector<std::uint64_t> offsets;
      for (std::size_t i = 0; i < kBatch; ++i) {  // Blocks of a batch do not overlap.
        const std::size_t blocks = 1 + static_cast<std::size_t>(random.below(5));
        const std::uint64_t offset = (thread * kRegion + i * 5) * kBlock;
        buffers.push_back(writes ? AlignedBytes(blocks * kBlock, random)
                                 : AlignedBytes(blocks * kBlock));
        offsets.push_back(offset);
        if (writes) {
          std::memcpy(image.data() + offset, buffers[i].data(), buffers[i].size());
          drive->write(offset, buffers[i].span(), "chunk", done);
        } else {
          drive->read(offset, buffers[i].span(), "chunk", done);
        }
      }
      left.wait();
      for (std::size_t i = 0; i < kBatch && !writes; ++i) {
        EXPECT_EQ(std::memcmp(buffers[i].data(), image.data() + offsets[i], buffers[i].size()), 0);
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  const AlignedBytes all(image.size());
  drive->read_now(0, all.span(), "everything");
  EXPECT_EQ(all, image);
  EXPECT_EQ(drive->counters().reads + drive->counters().writes, kThreads * kRounds * kBatch + 1);
}

TEST_P(DriveTest, DestructionWaitsForRequestsInFlight) {
  open(64);
  const AlignedBytes bytes(64 * kBlock, rng);
  std::atomic<int> ended{0};
  for (std::size_t i = 0; i < 64; ++i) {
    drive->write(i * kBlock, bytes.span(i * kBlock, kBlock), "chunk", [&](const IoError* error) {
      EXPECT_EQ(error, nullptr);
      ++ended;
    });
  }
  drive.reset();
  EXPECT_EQ(ended, 64);
}

TEST_P(DriveTest, HandlersRunOnThreadsOfTheDrive) {
  open(8);
  const AlignedBytes bytes(8 * kBlock);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  for (std::size_t i = 0; i < 8; ++i) {
    drive->read(i * kBlock, bytes.span(i * kBlock, kBlock), "chunk", [&](const IoError*) {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
  }
  drive.reset();
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0U);
  EXPECT_GE(threads.size(), 1U);
}

TEST_P(DriveTest, HandlerMayStartTheNextRequest) {
  open(8);
  const AlignedBytes bytes(8 * kBlock, rng), read(8 * kBlock);
  drive->write_now(0, bytes.span(), "all");
  Countdown left(8);
  std::function<void(std::size_t)> read_from = [&](std::size_t block) {
    drive->read(block * kBlock, read.span(block * kBlock, kBlock), "chunk",
                [&, block](const IoError*) {
                  if (block + 1 < 8) read_from(block + 1);
                  left.down();
                });
  };
  read_from(0);
  left.wait();
  EXPECT_EQ(bytes, read);
}

TEST_P(DriveTest, GrownDriveTakesRequestsInItsNewRoom) {
  open(2);
  drive->grow(6 * kBlock);
  const AlignedBytes written(2 * kBlock, rng), read(2 * kBlock);
  drive->write_now(kBlock, written.span(), "across the old end");
  drive->read_now(kBlock, read.span(), "across the old end");
  EXPECT_EQ(written, read);
  EXPECT_EQ(drive->size_bytes(), 6 * kBlock);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, DriveTest, testing::ValuesIn(cases()), [](const auto& each) {
  return each.param.back_end + "_" + std::to_string(each.param.depth);
});

}  // namespace
}  // namespace sluiceway::test
