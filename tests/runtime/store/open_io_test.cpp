// open_io() and create_drive_file(): what they reject, with which text, and what is left behind.
#include "runtime/store/open_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "kernels/base/error.h"
#include "tests/support/io_back_ends.h"
#include "tests/support/memory_folder.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::chrono::milliseconds kAtOnce{0};
constexpr OpenOptions kPosix{.io = IoChoice::kPosix, .busy_wait = kAtOnce};

int errno_of(const std::function<void()>& call) {
  try {
    call();
    return 0;
  } catch (const IoError& error) {
    return error.error_number();
  }
}

TEST(OpenIoTest, PropertiesSayWhatWasOpened) {
  const ScratchPath path;
  create_drive_file(path.str(), 3 << 20);
  const auto io = open_io(path.str(), kPosix);
  const RawIo::Properties& properties = io->properties();
  EXPECT_EQ(properties.path, path.str());
  EXPECT_EQ(properties.backend, "posix");
  EXPECT_EQ(properties.depth, 32U);
  EXPECT_FALSE(properties.block_device);
  EXPECT_EQ(properties.note, "");
  EXPECT_EQ(io->size_bytes(), std::uint64_t{3} << 20);
  EXPECT_EQ(4096 % properties.offset_alignment, 0U);
}

TEST(OpenIoTest, FileInMemorySaysThatItIsNotDirect) {
  ASSERT_NE(memory_folder(), "") << "no writable tmpfs";
  const ScratchPath path(memory_folder());
  create_drive_file(path.str(), 1 << 20);
  EXPECT_FALSE(open_io(path.str(), kPosix)->properties().direct);
}

TEST(OpenIoTest, PacedDriveCarriesReadsAndWritesOneAfterAnother) {
  constexpr std::size_t kPart = 1 << 20;
  const ScratchPath path;
  create_drive_file(path.str(), 4 * kPart);
  const auto io = open_io(path.str(), {.busy_wait = kAtOnce, .rate_gbps = 0.1});
  EXPECT_EQ(io->properties().backend, "posix");
  const AlignedBytes bytes(4 * kPart);
  const auto began = std::chrono::steady_clock::now();
  Countdown left(4);
  for (std::size_t part = 0; part < 4; ++part) {
    const IoKind kind = part % 2 == 0 ? IoKind::kWrite : IoKind::kRead;
    io->submit({kind, part * kPart, bytes.span(part * kPart, kPart)}, [&](RawResult result) {
      EXPECT_EQ(result.error_number, 0);
      EXPECT_EQ(result.bytes, kPart);
      left.down();
    });
  }
  left.wait();
  // Only the lower bound holds on a busy machine.
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_GE(took.count(), 4 * kPart / 0.1e9);
}

TEST(OpenIoTest, RateThatNoDriveCanHaveIsRefused) {
  const ScratchPath path;
  create_drive_file(path.str(), 1 << 20);
  for (const double rate :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT([&] { (void)open_io(path.str(), {.busy_wait = kAtOnce, .rate_gbps = rate}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("expected 0 (not paced) or more")))
        << rate;
  }
  const OpenOptions uring{.io = IoChoice::kUring, .busy_wait = kAtOnce, .rate_gbps = 1};
  EXPECT_THAT([&] { (void)open_io(path.str(), uring); },
              ThrowsMessage<InvalidArgument>(HasSubstr("choose auto or posix")));
}

TEST(OpenIoTest, MissingFileIsNamed) {
  EXPECT_THAT(
      [] { (void)open_io("/nowhere/drive", kPosix); },
      ThrowsMessage<IoError>(AllOf(HasSubstr("/nowhere/drive"), HasSubstr("No such file"))));
}

TEST(OpenIoTest, FolderAndCharacterDeviceAreRefused) {
  for (const char* path : {"/tmp", "/dev/null"}) {
    EXPECT_THAT([&] { (void)open_io(path, kPosix); },
                ThrowsMessage<InvalidArgument>(HasSubstr("neither a file nor a block device")));
  }
}

TEST(OpenIoTest, DepthOutOfRangeIsRefused) {
  const ScratchPath path;
  create_drive_file(path.str(), 4096);
  for (const std::size_t depth : {std::size_t{0}, std::size_t{1025}}) {
    EXPECT_THAT([&] { (void)open_io(path.str(), {.io = IoChoice::kPosix, .depth = depth}); },
                ThrowsMessage<InvalidArgument>(HasSubstr("expected 1 to 1024")));
  }
}

TEST(OpenIoTest, DriveIsLockedAgainstASecondWriterWhileItIsOpen) {
  const ScratchPath path;
  create_drive_file(path.str(), 4096);
  auto first = open_io(path.str(), kPosix);
  for (const Access access : {Access::kRead, Access::kReadWrite}) {
    EXPECT_THAT(
        [&] {
          (void)open_io(path.str(),
                        {.io = IoChoice::kPosix, .access = access, .busy_wait = kAtOnce});
        },
        ThrowsMessage<IoError>(AllOf(HasSubstr(path.str()), HasSubstr("is open in another"))));
  }
  first.reset();
  EXPECT_NO_THROW((void)open_io(path.str(), kPosix));
}

TEST(OpenIoTest, DriveThatIsLeftWhileAnotherWaitsForItIsOpened) {
  const ScratchPath path;
  create_drive_file(path.str(), 4096);
  auto first = open_io(path.str(), kPosix);
  std::thread leaves([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    first.reset();
  });
  EXPECT_NO_THROW((void)open_io(path.str(), {.io = IoChoice::kPosix}));
  leaves.join();
}

TEST(OpenIoTest, ReadersShareADriveAndKeepWritersOut) {
  const ScratchPath path;
  create_drive_file(path.str(), 4096);
  const OpenOptions reads{.io = IoChoice::kPosix, .access = Access::kRead};
  const auto first = open_io(path.str(), reads);
  const auto second = open_io(path.str(), reads);
  EXPECT_EQ(errno_of([&] { (void)open_io(path.str(), kPosix); }), EBUSY);
}

TEST(OpenIoTest, ReaderCannotWrite) {
  const ScratchPath path;
  create_drive_file(path.str(), 4096);
  const auto io = open_io(path.str(), {.io = IoChoice::kPosix, .access = Access::kRead});
  const AlignedBytes bytes(4096);
  Countdown ended(1);
  int error_number = 0;
  io->submit({IoKind::kWrite, 0, bytes.span()}, [&](RawResult result) {
    error_number = result.error_number;
    ended.down();
  });
  ended.wait();
  EXPECT_EQ(error_number, EBADF);
}

TEST(CreateDriveFileTest, FileHasItsSizeWithTheRoomAllocated) {
  const ScratchPath path;
  create_drive_file(path.str(), 5 << 20);
  struct stat about {};
  ASSERT_EQ(stat(path.str().c_str(), &about), 0);
  EXPECT_EQ(about.st_size, 5 << 20);
  EXPECT_GE(about.st_blocks * 512, 5 << 20);
}

TEST(CreateDriveFileTest, ExistingFileIsRefusedAndKept) {
  const ScratchPath path;
  std::ofstream(path.str()) << "of somebody else";
  EXPECT_EQ(errno_of([&] { create_drive_file(path.str(), 4096); }), EEXIST);
  std::string kept;
  std::getline(std::ifstream(path.str()), kept);
  EXPECT_EQ(kept, "of somebody else");
}

TEST(CreateDriveFileTest, TooLittleRoomNamesBothByteCountsAndLeavesNothing) {
  const ScratchPath path;
  constexpr std::uint64_t kTooMuch = std::uint64_t{1} << 50;
  EXPECT_THAT(
      [&] { create_drive_file(path.str(), kTooMuch); },
      ThrowsMessage<IoError>(AllOf(HasSubstr("1125899906842624 bytes (1024.00 TiB)"),
                                   HasSubstr("are free there"), HasSubstr("No space left"))));
  EXPECT_FALSE(std::filesystem::exists(path.str()));
}

TEST(CreateDriveFileTest, MissingFolderIsNamed) {
  EXPECT_EQ(errno_of([] { create_drive_file("/nowhere/at/all", 4096); }), ENOENT);
}

TEST(CreateDriveFileTest, EmptyDriveIsRefused) {
  const ScratchPath path;
  EXPECT_THROW(create_drive_file(path.str(), 0), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(path.str()));
}

}  // namespace
}  // namespace sluiceway::test
