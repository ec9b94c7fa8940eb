// Drive: the result of every error of a system call, at every place where one can happen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "runtime/store/drive.h"
#include "runtime/store/memory_io.h"
#include "tests/support/fault_io.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kBlocks = 16;

class DriveFaultTest : public testing::Test {
 protected:
  DriveFaultTest() {
    auto io = std::make_unique<FaultIo>(open_memory_io(budget, kBlocks * kBlock, "/mem/drive"));
    faults = io.get();
    drive = std::make_unique<Drive>(std::move(io), options());
  }
  Drive::Options options() {
    Drive::Options chosen;
    chosen.stuck_after = milliseconds(40);
    chosen.first_pause = milliseconds(1);
    chosen.transient_tries = 4;
    chosen.report = [this](const std::string& line) {
      const std::lock_guard lock(mutex);
      lines.push_back(line);
    };
    return chosen;
  }
  std::vector<std::string> reported() {
    const std::lock_guard lock(mutex);
    return lines;
  }
  void wait_for_reports(std::size_t count) {
    while (reported().size() < count) std::this_thread::sleep_for(milliseconds(1));
  }
  // Returns the error number that ends a request of all blocks, 0 for none.
  int end_of(IoKind kind) {
    try {
      if (kind == IoKind::kRead) {
        drive->read_now(0, bytes.span(), "chunk 12");
      } else {
        drive->write_now(0, bytes.span(), "chunk 12");
      }
      return 0;
    } catch (const IoError& error) {
      return error.error_number();
    }
  }

  Budget budget{Budget::Limits{0, 1 << 20, 0, 0}};
  Rng rng{20240611};
  const AlignedBytes bytes{kBlocks * kBlock, rng};
  std::mutex mutex;
  std::vector<std::string> lines;
  FaultIo* faults = nullptr;
  std::unique_ptr<Drive> drive;
};

TEST_F(DriveFaultTest, ErrorThatIsNotTransientEndsTheRequestAtOnceWithPathOffsetAndErrno) {
  for (const int error_number : {ENOSPC, EROFS, EBADF, EINVAL, ENXIO, EDQUOT}) {
    for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
      faults->fail(kind, {faults->submitted(kind) + 1, 1}, error_number);
      try {
        const auto part = bytes.span(0, kBlock);
        kind == IoKind::kRead ? drive->read_now(2 * kBlock, part, "chunk 12")
                              : drive->write_now(2 * kBlock, part, "chunk 12");
        FAIL() << "expected error " << error_number;
      } catch (const IoError& error) {
        EXPECT_EQ(error.error_number(), error_number);
        EXPECT_EQ(error.path(), "/mem/drive");
        EXPECT_EQ(error.offset(), static_cast<std::int64_t>(2 * kBlock));
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr(std::string(to_string(kind)) + " of chunk 12"),
                          HasSubstr("4096 bytes (4.00 KiB) at byte 8192"), HasSubstr("/mem/drive"),
                          HasSubstr(std::strerror(error_number)), HasSubstr("0 bytes were")));
      }
    }
  }
  EXPECT_EQ(drive->counters().failed, 12U);
  EXPECT_EQ(drive->counters().retries, 0U);
  EXPECT_EQ(end_of(IoKind::kRead), 0);  // No error lasts.
}

TEST_F(DriveFaultTest, TransientErrorsAreTriedAgainUntilTheyPass) {
  for (const int error_number : {EAGAIN, EINTR, ENOMEM}) {
    for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
      faults->fail(kind, {faults->submitted(kind) + 1, 4}, error_number);
      EXPECT_EQ(end_of(kind), 0) << error_number;
    }
  }
  EXPECT_EQ(drive->counters().retries, 24U);
  EXPECT_EQ(drive->counters().failed, 0U);
}

TEST_F(DriveFaultTest, TransientErrorThatStaysEndsTheRequestAfterABound) {
  for (const int error_number : {EAGAIN, EINTR, ENOMEM}) {
    for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
      const std::uint64_t before = faults->submitted(kind);
      faults->fail(kind, {before + 1, 5}, error_number);
      EXPECT_EQ(end_of(kind), error_number);
      EXPECT_EQ(faults->submitted(kind), before + 5);
    }
  }
}

TEST_F(DriveFaultTest, PausesDoubleAndTakeNoProcessorTime) {
  faults->fail(IoKind::kRead, {1, 4}, EAGAIN);
  const auto begin = std::chrono::steady_clock::now();
  const std::clock_t processor = std::clock();
  EXPECT_EQ(end_of(IoKind::kRead), 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(1 + 2 + 4 + 8));
  EXPECT_LT(std::clock() - processor, CLOCKS_PER_SEC / 100);
}

TEST_F(DriveFaultTest, ReadIsTriedThreeTimesOnEioAndAWriteOnce) {
  faults->fail(IoKind::kRead, {1, 2}, EIO);
  EXPECT_EQ(end_of(IoKind::kRead), 0);
  EXPECT_EQ(faults->submitted(IoKind::kRead), 3U);
  faults->fail(IoKind::kRead, {4, 3}, EIO);
  EXPECT_THAT([&] { drive->read_now(kBlock, bytes.span(0, kBlock), "chunk 3"); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("chunk 3"), HasSubstr("after 3 tries"))));
  EXPECT_EQ(faults->submitted(IoKind::kRead), 6U);
  faults->fail(IoKind::kWrite, {1, 1}, EIO);
  EXPECT_EQ(end_of(IoKind::kWrite), EIO);
  EXPECT_EQ(faults->submitted(IoKind::kWrite), 1U);
}

TEST_F(DriveFaultTest, ShortTransferGoesOnFromAnAlignedOffset) {
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    const Drive::Counters before = drive->counters();
    faults->shorten(kind, {faults->submitted(kind) + 1, 1}, 5 * kBlock + 123);
    EXPECT_EQ(end_of(kind), 0);
    const Drive::Counters after = drive->counters();
    EXPECT_EQ(after.resumed - before.resumed, 1U);
    EXPECT_EQ(after.bytes_read + after.bytes_written - before.bytes_read - before.bytes_written,
              kBlocks * kBlock + 123);
  }
}

TEST_F(DriveFaultTest, BytesAreRightAfterManyShortTransfers) {
  faults->shorten(IoKind::kWrite, FaultIo::kAlways, kBlock);
  faults->shorten(IoKind::kRead, FaultIo::kAlways, 2 * kBlock + 1);
  drive->write_now(0, bytes.span(), "all");
  const AlignedBytes read(bytes.size());
  drive->read_now(0, read.span(), "all");
  EXPECT_EQ(read, bytes);
  EXPECT_EQ(drive->counters().resumed, kBlocks - 1 + kBlocks / 2 - 1);
}

TEST_F(DriveFaultTest, ProgressStartsTheCountOfTriesAgain) {
  faults->shorten(IoKind::kWrite, FaultIo::kAlways, kBlock);
  for (std::uint64_t nth = 1; nth < 60; nth += 5) faults->fail(IoKind::kWrite, {nth, 4}, EAGAIN);
  EXPECT_EQ(end_of(IoKind::kWrite), 0);
  EXPECT_EQ(drive->counters().retries, 48U);
}

TEST_F(DriveFaultTest, TransferOfLessThanABlockIsNoProgressAndBounded) {
  faults->shorten(IoKind::kWrite, FaultIo::kAlways, 511);
  EXPECT_EQ(end_of(IoKind::kWrite), EAGAIN);
  EXPECT_EQ(faults->submitted(IoKind::kWrite), 5U);
  EXPECT_EQ(drive->counters().bytes_written, 5U * 511U);
}

TEST_F(DriveFaultTest, WriteOfNothingIsBoundedToo) {
  faults->shorten(IoKind::kWrite, FaultIo::kAlways, 0);
  EXPECT_EQ(end_of(IoKind::kWrite), EAGAIN);
}

TEST_F(DriveFaultTest, ReadThatMeetsTheEndSaysSo) {
  faults->shorten(IoKind::kRead, {1, 1}, 3 * kBlock);
  faults->shorten(IoKind::kRead, {2, 1}, 0);
  EXPECT_THAT([&] { drive->read_now(0, bytes.span(), "chunk 1"); },
              ThrowsMessage<IoError>(
                  AllOf(HasSubstr("the drive ends there"), HasSubstr("12288 bytes were"))));
}

// Every error at every request of a series of short transfers: ends whole, or with the error of
// that place.
TEST_F(DriveFaultTest, EveryErrorAtEveryCallSiteEndsAsItShould) {
  for (const IoKind kind : {IoKind::kRead, IoKind::kWrite}) {
    faults->shorten(kind, FaultIo::kAlways, 4 * kBlock);
    for (const int error_number : {EIO, EAGAIN, ENOSPC, EINTR, ENOMEM}) {
      for (std::uint64_t site = 1; site <= 4; ++site) {
        faults->fail(kind, {faults->submitted(kind) + site, 1}, error_number);
        const bool recovers = error_number == EAGAIN || error_number == EINTR ||
                              error_number == ENOMEM ||
                              (error_number == EIO && kind == IoKind::kRead);
        EXPECT_EQ(end_of(kind), recovers ? 0 : error_number) << error_number << " at " << site;
      }
    }
  }
}

TEST_F(DriveFaultTest, TornWriteIsAnErrorAndCanBeWrittenAgain) {
  drive->write_now(0, AlignedBytes(bytes.size()).span(), "zeros");
  faults->tear({2, 1}, EIO);
  EXPECT_EQ(end_of(IoKind::kWrite), EIO);
  const AlignedBytes torn(bytes.size());
  drive->read_now(0, torn.span(), "all");
  EXPECT_FALSE(torn == bytes);  // Some of its sectors are there.
  EXPECT_FALSE(torn == AlignedBytes(bytes.size()));
  EXPECT_EQ(end_of(IoKind::kWrite), 0);
  drive->read_now(0, torn.span(), "all");
  EXPECT_EQ(torn, bytes);
}

TEST_F(DriveFaultTest, RequestThatDoesNotCompleteIsReportedOnceAndStaysWaitedFor) {
  faults->hold(IoKind::kRead, {1, 1});
  std::promise<void> ended;
  drive->read(2 * kBlock, bytes.span(0, kBlock), "chunk 12 of state", [&](const IoError* error) {
    error == nullptr ? ended.set_value() : std::terminate();
  });
  wait_for_reports(1);
  std::this_thread::sleep_for(milliseconds(100));
  ASSERT_EQ(reported().size(), 1U);
  EXPECT_THAT(reported()[0], AllOf(HasSubstr("read of chunk 12 of state"), HasSubstr("byte 8192"),
                                   HasSubstr("/mem/drive"), HasSubstr("at most 0.04 s")));
  EXPECT_EQ(drive->in_flight(), 1U);
  EXPECT_EQ(drive->counters().stuck, 1U);
  faults->release();
  ended.get_future().wait();
  EXPECT_EQ(drive->counters().failed, 0U);
}

TEST_F(DriveFaultTest, EveryStuckRequestIsNamed) {
  faults->hold(IoKind::kWrite, {1, 3});
  for (int i = 0; i < 3; ++i) {
    drive->write(0, bytes.span(0, kBlock), "chunk " + std::to_string(i), [](const IoError*) {});
  }
  wait_for_reports(3);
  const std::string all = reported()[0] + reported()[1] + reported()[2];
  EXPECT_THAT(all, AllOf(HasSubstr("chunk 0"), HasSubstr("chunk 1"), HasSubstr("chunk 2")));
  faults->release();
}

TEST_F(DriveFaultTest, StuckFlushIsReported) {
  faults->hold_flush(milliseconds(120));
  drive->flush();
  ASSERT_EQ(reported().size(), 1U);
  EXPECT_THAT(reported()[0], HasSubstr("flush of /mem/drive: not completed"));
}

// Longer than one request, so that our thread wakes for requests that have ended.
TEST_F(DriveFaultTest, QuickRequestsAreNotReported) {
  Drive::Options patient = options();
  patient.stuck_after = milliseconds(500);
  drive = std::make_unique<Drive>(open_memory_io(budget, kBlock, "/mem/quick"), patient);
  const auto end = std::chrono::steady_clock::now() + milliseconds(700);
  while (std::chrono::steady_clock::now() < end) {
    drive->write_now(0, bytes.span(0, kBlock), "chunk");
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(reported().empty());
}

TEST_F(DriveFaultTest, FailedFlushIsNeverTriedAgainAndEveryLaterCallSaysSo) {
  faults->fail_flush({2, 1}, EIO);
  drive->write_now(0, bytes.span(), "all");
  drive->flush();
  const auto says_so = ThrowsMessage<IoError>(
      AllOf(HasSubstr("a flush of /mem/drive failed"), HasSubstr("Input/output error")));
  EXPECT_THAT([&] { drive->flush(); }, says_so);
  EXPECT_THAT([&] { drive->flush(); }, says_so);  // The back end would now return 0.
  EXPECT_THAT([&] { drive->read_now(0, bytes.span(), "all"); }, says_so);
  EXPECT_THAT([&] { drive->write_now(0, bytes.span(), "all"); }, says_so);
  EXPECT_THAT([&] { drive->grow(32 * kBlock); }, says_so);
  EXPECT_EQ(drive->counters().flushes, 2U);
  EXPECT_EQ(faults->submitted(IoKind::kRead), 0U);
  EXPECT_EQ(faults->submitted(IoKind::kWrite), 1U);
}

TEST_F(DriveFaultTest, FlushThatSucceedsBesideOneThatFailsFailsToo) {
  faults->hold_flush(milliseconds(50));
  faults->fail_flush({1, 1}, EIO);
  auto other = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(milliseconds(20));
    drive->flush();
  });
  EXPECT_THROW(drive->flush(), IoError);
  EXPECT_THROW(other.get(), IoError);
}

TEST_F(DriveFaultTest, RequestsInFlightAtAFailedFlushEndAsTheyEnd) {
  faults->hold(IoKind::kWrite, {1, 1});
  faults->fail_flush({1, 1}, ENOSPC);
  std::promise<bool> whole;
  drive->write(0, bytes.span(), "all",
               [&](const IoError* error) { whole.set_value(error == nullptr); });
  EXPECT_THAT([&] { drive->flush(); }, ThrowsMessage<IoError>(HasSubstr("No space left")));
  faults->release();
  EXPECT_TRUE(whole.get_future().get());
}

TEST_F(DriveFaultTest, DestructionWaitsForPausesAndStuckRequests) {
  faults->fail(IoKind::kRead, {1, 4}, EAGAIN);
  faults->hold(IoKind::kWrite, {1, 1});
  std::atomic<int> ended{0};
  drive->read(0, bytes.span(0, kBlock), "paused", [&](const IoError*) { ++ended; });
  drive->write(0, bytes.span(kBlock, kBlock), "stuck", [&](const IoError*) { ++ended; });
  std::thread later([this] {
    std::this_thread::sleep_for(milliseconds(80));
    faults->release();
  });
  drive.reset();
  EXPECT_EQ(ended, 2);
  later.join();
}

TEST_F(DriveFaultTest, GrowthThatIsRefusedNamesBothByteCounts) {
  EXPECT_THAT([&] { drive->grow(2 << 20); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("65536 bytes (64.00 KiB)"),
                                           HasSubstr("2097152 bytes (2.00 MiB)"))));
  EXPECT_EQ(drive->size_bytes(), kBlocks * kBlock);
}

}  // namespace
}  // namespace sluiceway::test
