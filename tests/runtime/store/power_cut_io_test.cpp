// PowerCutIo, the drive that loses power, on which the tests of commits rely: what it may lose and
// what not.
#include "tests/support/power_cut_io.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "runtime/store/drive.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kSector = 512;
using Options = PowerCutIo::Options;

class PowerCutIoTest : public testing::Test {
 protected:
  std::unique_ptr<Drive> open(Options options) {
    auto io = std::make_unique<PowerCutIo>(medium, options);
    raw = io.get();
    return std::make_unique<Drive>(std::move(io));
  }
  void write(Drive& drive, std::size_t block, char value) {
    const AlignedBytes bytes(kBlock);
    std::fill_n(bytes.data(), kBlock, static_cast<std::byte>(value));
    drive.write_now(block * kBlock, bytes.span(), "block");
  }
  // One letter for each sector of a block.
  std::string sectors(std::size_t block) const {
    std::string letters;
    for (std::size_t at = 0; at < kBlock; at += kSector) {
      letters += static_cast<char>((*medium)[block * kBlock + at]);
    }
    return letters;
  }
  std::shared_ptr<PowerCutIo::Medium> medium =
      std::make_shared<PowerCutIo::Medium>(4 * kBlock, std::byte{'.'});
  PowerCutIo* raw = nullptr;
};

TEST_F(PowerCutIoTest, WhatWasFlushedIsThereAfterEveryCut) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const auto drive = open({.seed = seed});
    write(*drive, 0, static_cast<char>('a' + seed % 26));
    drive->flush();
    write(*drive, 1, 'x');
    raw->cut();
    EXPECT_EQ(sectors(0), std::string(8, static_cast<char>('a' + seed % 26)));
  }
}

TEST_F(PowerCutIoTest, WhatWasNotFlushedIsLostKeptOrTorn) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::fill(medium->begin(), medium->end(), std::byte{'.'});
    const auto drive = open({.seed = seed});
    write(*drive, 0, 'a');
    write(*drive, 0, 'b');
    raw->cut();
    seen.insert(sectors(0));
  }
  EXPECT_EQ(seen.count("........"), 1U);
  EXPECT_EQ(seen.count("aaaaaaaa"), 1U);  // The second write is lost, but not the first.
  EXPECT_EQ(seen.count("bbbbbbbb"), 1U);
  EXPECT_GT(seen.size(), 20U);
}

TEST_F(PowerCutIoTest, ReadsSeeWritesBeforeTheyAreFlushed) {
  const auto drive = open({});
  write(*drive, 2, 'a');
  const AlignedBytes bytes(kBlock);
  drive->read_now(2 * kBlock, bytes.span(), "block");
  EXPECT_EQ(bytes.data()[17], std::byte{'a'});
  EXPECT_EQ(sectors(2), "........");
}

TEST_F(PowerCutIoTest, EverythingFailsFromTheChosenOperationOn) {
  for (std::uint64_t dies_at = 1; dies_at <= 4; ++dies_at) {
    const auto drive = open({.dies_at = dies_at});
    std::uint64_t succeeded = 0;
    try {
      write(*drive, 0, 'a');
      ++succeeded;
      drive->flush();
      ++succeeded;
      write(*drive, 1, 'a');
      ++succeeded;
      drive->flush();
      ++succeeded;
    } catch (const IoError& error) {
      EXPECT_EQ(error.error_number(), EIO);
    }
    EXPECT_EQ(succeeded, dies_at - 1);
    EXPECT_EQ(raw->operations(), dies_at);
    EXPECT_THROW(write(*drive, 3, 'a'), IoError);
  }
}

TEST_F(PowerCutIoTest, LostFlushSaysThatItHappened) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::fill(medium->begin(), medium->end(), std::byte{'.'});
    const auto drive = open({.seed = seed, .lies_at = 1});
    write(*drive, 0, 'a');
    drive->flush();
    raw->cut();
    seen.insert(sectors(0));
  }
  EXPECT_EQ(seen.count("........"), 1U);
}

TEST_F(PowerCutIoTest, MediumLivesOnAndTheSameSeedCutsTheSame) {
  std::string first;
  for (int i = 0; i < 2; ++i) {
    std::fill(medium->begin(), medium->end(), std::byte{'.'});
    open({.seed = 77, .dies_at = 2});
    const auto drive = open({.seed = 77, .dies_at = 2});
    write(*drive, 0, 'a');
    EXPECT_THROW(write(*drive, 1, 'b'), IoError);
    EXPECT_TRUE(i == 0 || sectors(0) + sectors(1) == first);
    first = sectors(0) + sectors(1);
  }
}

}  // namespace
}  // namespace sluiceway::test
