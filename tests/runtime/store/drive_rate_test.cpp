// measure_rate(): moves the requested bytes, and ends with the first failure.
#include "runtime/store/drive_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "runtime/store/memory_io.h"
#include "tests/support/fault_io.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::size_t kBlock = 4096;

class DriveRateTest : public testing::Test {
 protected:
  DriveRateTest() {
    auto faults = std::make_unique<FaultIo>(open_memory_io(budget, 5 * kBlock, "memory"));
    fault = faults.get();
    drive = std::make_unique<Drive>(std::move(faults));
    options.block_bytes = kBlock;
    options.blocks = 5;
    options.depth = 3;
    options.memory = memory.span();
    options.most_requests = 12;
  }

  Budget budget = Budget::unlimited();
  AlignedBytes memory{3 * kBlock};
  FaultIo* fault = nullptr;
  std::unique_ptr<Drive> drive;
  RateOptions options;
};

TEST_F(DriveRateTest, EachMixMovesItsBlocksAndFlushesWrites) {
  for (const Mix mix : {Mix::kRead, Mix::kWrite, Mix::kBoth}) {
    const Drive::Counters before = drive->counters();
    options.mix = mix;
    const DriveRate rate = measure_rate(*drive, options);
    const Drive::Counters after = drive->counters();
    EXPECT_EQ(rate.requests, 12U);
    EXPECT_EQ(rate.bytes, 12 * kBlock);
    EXPECT_GT(rate.seconds, 0);
    const std::uint64_t reads = mix == Mix::kBoth ? 6 : mix == Mix::kRead ? 12 : 0;
    EXPECT_EQ(after.bytes_read - before.bytes_read, reads * kBlock);
    EXPECT_EQ(after.bytes_written - before.bytes_written, (12 - reads) * kBlock);
    EXPECT_EQ(after.flushes - before.flushes, mix == Mix::kRead ? 0U : 1U);
  }
}

TEST_F(DriveRateTest, EndsWhenTheTimeIsOver) {
  options.most_requests = std::numeric_limits<std::uint64_t>::max();
  options.longest = std::chrono::milliseconds(30);
  const DriveRate rate = measure_rate(*drive, options);
  EXPECT_GE(rate.seconds, 0.03);
  EXPECT_GT(rate.requests, 0U);
}

TEST_F(DriveRateTest, TheFirstErrorEndsItWithNothingInFlight) {
  options.mix = Mix::kWrite;
  options.most_requests = std::numeric_limits<std::uint64_t>::max();
  fault->fail(IoKind::kWrite, {7, 1}, ENOSPC);
  EXPECT_THAT([&] { measure_rate(*drive, options); }, ThrowsMessage<IoError>(HasSubstr("block")));
  while (drive->in_flight() > 0) std::this_thread::yield();  // The last handler is returning.
}

TEST_F(DriveRateTest, WhatTheCheckThrowsEndsIt) {
  options.most_requests = std::numeric_limits<std::uint64_t>::max();
  options.check = [] { throw std::runtime_error("Ctrl-C"); };
  EXPECT_THAT([&] { measure_rate(*drive, options); }, ThrowsMessage<std::runtime_error>("Ctrl-C"));
}

TEST_F(DriveRateTest, TooLittleMemoryIsRefusedWithBothSizes) {
  options.memory = memory.span(0, 2 * kBlock);
  EXPECT_THAT([&] { measure_rate(*drive, options); },
              ThrowsMessage<InvalidArgument>(HasSubstr("8192 bytes of memory, expected 12288")));
  options.blocks = 0;
  EXPECT_THROW(measure_rate(*drive, options), InvalidArgument);
}

TEST(MixTest, NamesAreThoseOfTheHeader) {
  EXPECT_EQ(parse_mix("read"), Mix::kRead);
  EXPECT_EQ(parse_mix("write"), Mix::kWrite);
  EXPECT_EQ(parse_mix("both"), Mix::kBoth);
  EXPECT_THAT([] { parse_mix("some"); }, ThrowsMessage<InvalidArgument>(HasSubstr("\"some\"")));
}

}  // namespace
}  // namespace sluiceway::test
