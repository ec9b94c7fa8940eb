// memory_io: reserves its bytes in the budget, also when it grows.
#include "runtime/store/memory_io.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "kernels/base/error.h"
#include "runtime/store/drive.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

TEST(MemoryIoTest, BytesAreReservedAndGivenBack) {
  Budget budget{Budget::Limits{0, 1 << 20, 0, 0}};
  {
    const auto io = open_memory_io(budget, 65536, "memory");
    EXPECT_EQ(budget.used(Tier::kHost), 65536U);
    EXPECT_EQ(io->grow(131072), 0);
    EXPECT_EQ(budget.used(Tier::kHost), 131072U);
  }
  EXPECT_EQ(budget.used(Tier::kHost), 0U);
}

TEST(MemoryIoTest, BeyondTheBudgetItIsRefusedAndGrowthChangesNothing) {
  Budget budget{Budget::Limits{0, 1 << 20, 0, 0}};
  EXPECT_THROW((void)open_memory_io(budget, 2 << 20, "memory"), OutOfMemory);
  const auto io = open_memory_io(budget, 65536, "memory");
  EXPECT_EQ(io->grow(2 << 20), ENOMEM);
  EXPECT_EQ(io->size_bytes(), 65536U);
  EXPECT_EQ(budget.used(Tier::kHost), 65536U);
}

TEST(MemoryIoTest, RequestsCrossTheSeamsOfGrowth) {
  Budget budget{Budget::Limits{0, 1 << 20, 0, 0}};
  Drive drive(open_memory_io(budget, 4096, "memory"));
  for (std::uint64_t blocks = 2; blocks <= 16; blocks += 3) drive.grow(blocks * 4096);
  Rng rng(20240611);
  const AlignedBytes written(14 * 4096, rng), read(14 * 4096);
  drive.write_now(0, written.span(), "all");
  drive.read_now(0, read.span(), "all");
  EXPECT_EQ(written, read);
}

TEST(MemoryIoTest, BytesAreGivenWhereTheyLieInOnePieceAndStayThere) {
  Budget budget{Budget::Limits{0, 1 << 20, 0, 0}};
  Drive drive(open_memory_io(budget, 8192, "memory"));
  const std::span<std::byte> first = drive.memory(4096, 4096);
  ASSERT_EQ(first.size(), 4096U);
  drive.grow(3 * 8192);
  EXPECT_EQ(drive.memory(4096, 4096).data(), first.data());
  EXPECT_EQ(drive.memory(8192, 2 * 8192).size(), 2 * 8192U);
  EXPECT_TRUE(drive.memory(4096, 8192).empty());  // Across a seam.
  EXPECT_TRUE(drive.memory(2 * 8192, 2 * 8192).empty());
  first[7] = std::byte{42};
  AlignedBytes read(4096);
  drive.read_now(4096, read.span(), "all");
  EXPECT_EQ(read.span()[7], std::byte{42});
}

TEST(MemoryIoTest, ADriveOnADiskHasNoMemoryToGive) {
  const OpenedBackEnd file = open_back_end("posix", 8192, 1);
  EXPECT_TRUE(file.io->memory(0, 4096).empty());
}

}  // namespace
}  // namespace sluiceway::test
