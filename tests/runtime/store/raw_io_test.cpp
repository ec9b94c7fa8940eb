// RawIo: how every back end handles requests; the same test bodies over all of them.
#include "runtime/store/raw_io.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>

#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

constexpr std::size_t kBlock = 4096;

// Collects results, and waits for them.
class Results {
 public:
  RawIo::Done done() {
    return [this](RawResult result) {
      const std::lock_guard lock(mutex_);
      results_.push_back(result);
      changed_.notify_all();
    };
  }
  std::vector<RawResult> wait(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.size() >= count; });
    return results_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RawResult> results_;
};

TEST(IoBackEndsTest, UringRunsHereOrTheReasonIsRecorded) {
  const std::optional<std::string> reason = why_no_uring();
  RecordProperty("uring", reason.value_or("tested"));
  std::cout << "uring: " << reason.value_or("tested") << "\n";
  const std::vector<std::string> names = io_back_ends();
  EXPECT_EQ(std::count(names.begin(), names.end(), "uring"), reason ? 0 : 1);
}

class RawIoTest : public testing::TestWithParam<std::string> {
 protected:
  void open(std::size_t blocks, std::size_t depth = 8) {
    opened = open_back_end(GetParam(), blocks * kBlock, depth);
  }
  RawIo& io() { return *opened.io; }
  OpenedBackEnd opened;
  Rng rng{20240611};
};

TEST_P(RawIoTest, WrittenBytesAreReadBack) {
  open(4);
  const AlignedBytes written(2 * kBlock, rng), read(2 * kBlock);
  Results results;
  io().submit({IoKind::kWrite, kBlock, written.span()}, results.done());
  results.wait(1);
  EXPECT_EQ(io().flush(), 0);
  io().submit({IoKind::kRead, kBlock, read.span()}, results.done());
  const RawResult last = results.wait(2).back();
  EXPECT_EQ(last.error_number, 0);
  EXPECT_LE(last.bytes, 2 * kBlock);  // A raw transfer may be short, and reports that.
  EXPECT_EQ(std::memcmp(written.data(), read.data(), last.bytes), 0);
}

TEST_P(RawIoTest, ReadAcrossTheEndIsShortAndOneBeyondItIsEmpty) {
  open(4);
  const AlignedBytes bytes(4 * kBlock);
  Results results;
  io().submit({IoKind::kRead, 3 * kBlock, bytes.span()}, results.done());
  EXPECT_EQ(results.wait(1).back().bytes, kBlock);
  io().submit({IoKind::kRead, 4 * kBlock, bytes.span()}, results.done());
  EXPECT_EQ(results.wait(2).back().bytes, 0U);
  EXPECT_EQ(results.wait(2).back().error_number, 0);
}

TEST_P(RawIoTest, MoreRequestsThanTheDepthWaitForTheirTurn) {
  open(64, 2);
  const AlignedBytes bytes(64 * kBlock, rng);
  Results results;
  for (std::size_t i = 0; i < 64; ++i) {
    io().submit({IoKind::kWrite, i * kBlock, bytes.span(i * kBlock, kBlock)}, results.done());
  }
  EXPECT_EQ(results.wait(64).size(), 64U);
}

TEST_P(RawIoTest, DestructionWaitsForEveryHandler) {
  open(64, 4);
  const AlignedBytes bytes(64 * kBlock);
  std::atomic<int> handled{0};
  for (std::size_t i = 0; i < 64; ++i) {
    io().submit({IoKind::kRead, i * kBlock, bytes.span(i * kBlock, kBlock)}, [&](RawResult) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ++handled;
    });
  }
  opened.io.reset();
  EXPECT_EQ(handled, 64);
}

TEST_P(RawIoTest, HandlerMaySubmitTheNextRequest) {
  open(8, 1);
  const AlignedBytes bytes(kBlock);
  Results results;
  const auto last = results.done();
  std::function<void(std::size_t)> read_from = [&](std::size_t block) {
    io().submit({IoKind::kRead, block * kBlock, bytes.span()}, [&, block](RawResult result) {
      if (block == 7) {
        last(result);
      } else {
        read_from(block + 1);
      }
    });
  };
  read_from(0);
  EXPECT_EQ(results.wait(1).front().bytes, kBlock);
}

TEST_P(RawIoTest, GrownRoomIsZeroAndWhatWasThereStays) {
  open(2);
  const AlignedBytes before(kBlock, rng), after(kBlock), zeros(kBlock);
  Results results;
  io().submit({IoKind::kWrite, kBlock, before.span()}, results.done());
  results.wait(1);
  EXPECT_EQ(io().grow(5 * kBlock), 0);
  EXPECT_EQ(io().size_bytes(), 5 * kBlock);
  EXPECT_EQ(io().grow(3 * kBlock), 0);
  EXPECT_EQ(io().size_bytes(), 5 * kBlock);
  io().submit({IoKind::kRead, kBlock, after.span()}, results.done());
  results.wait(2);
  EXPECT_EQ(before, after);
  io().submit({IoKind::kRead, 4 * kBlock, after.span()}, results.done());
  results.wait(3);
  EXPECT_EQ(after, zeros);
}

TEST_P(RawIoTest, IdleDriveUsesNoProcessorTime) {
  open(1);
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 50);
}

INSTANTIATE_TEST_SUITE_P(BackEnds, RawIoTest, testing::ValuesIn(io_back_ends()),
                         [](const auto& each) { return each.param; });

}  // namespace
}  // namespace sluiceway::test
