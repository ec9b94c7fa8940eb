// Whole block devices, over loop devices: needs root and /dev/loop-control, else it says "not run".
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "kernels/base/check.h"
#include "runtime/store/drive.h"
#include "runtime/store/open_io.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint64_t kImageBytes = 16 << 20;

// Returns what a command prints, without its last newline; nothing if it fails.
std::optional<std::string> output_of(const std::string& command) {
  FILE* const pipe =
      popen(("PATH=$PATH:/sbin:/usr/sbin; " + command + " 2>/dev/null").c_str(), "r");
  std::string text;
  for (std::array<char, 256> part{}; fgets(part.data(), part.size(), pipe) != nullptr;) {
    text += part.data();
  }
  if (pclose(pipe) != 0) return std::nullopt;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class LoopDeviceTest : public testing::TestWithParam<IoChoice> {
 protected:
  ~LoopDeviceTest() override {
    if (mounted) output_of("umount " + folder.str());
    if (!device.empty()) output_of("losetup -d " + device);
  }
  // Returns whether there is a loop device now; if not, prints that this test did not run.
  bool attach(const std::string& prepare) {
    const bool lacks_ring = GetParam() == IoChoice::kUring && why_no_uring().has_value();
    create_drive_file(image.str(), kImageBytes);
    EXPECT_TRUE(prepare.empty() || output_of(prepare + " " + image.str()));
    if (!lacks_ring) device = output_of("losetup -f --show " + image.str()).value_or("");
    RecordProperty("run", device.empty() ? "not run" : "run");
    if (device.empty()) std::cout << "not run: no loop device (" << geteuid() << ") or no ring\n";
    return !device.empty();
  }
  OpenOptions options() const { return {.io = GetParam(), .whole_device = true, .busy_wait = {}}; }
  void expect_busy() {
    try {
      (void)open_io(device, options());
      ADD_FAILURE() << "expected a refusal";
    } catch (const IoError& error) {
      EXPECT_EQ(error.error_number(), EBUSY);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(device), HasSubstr("in use")));
    }
  }

  const ScratchPath image, folder;
  std::string device;
  bool mounted = false;
};

TEST_P(LoopDeviceTest, KeepsBytesAndCannotGrow) {
  if (!attach("")) return;
  Rng rng(20240611);
  const AlignedBytes written(kImageBytes, rng), read(kImageBytes);
  Drive drive(open_io(device, options()));
  EXPECT_TRUE(drive.properties().block_device);
  EXPECT_TRUE(drive.properties().direct);
  EXPECT_EQ(drive.size_bytes(), kImageBytes);
  drive.write_now(0, written.span(), "all");
  drive.flush();
  drive.read_now(0, read.span(), "all");
  EXPECT_EQ(written, read);
  EXPECT_THROW(drive.grow(2 * kImageBytes), IoError);
}

TEST_P(LoopDeviceTest, WithoutTheFlagItIsRefused) {
  if (!attach("")) return;
  EXPECT_THAT([&] { (void)open_io(device, {.io = GetParam()}); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(device), HasSubstr("whole_device"))));
}

TEST_P(LoopDeviceTest, WithAFileSystemItIsRefusedAndStaysAsItIs) {
  if (!attach("mkfs.ext4 -q -F")) return;
  const std::string before = content(image.str());
  EXPECT_THAT([&] { (void)open_io(device, options()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("has a ext4 file system")));
  EXPECT_EQ(content(image.str()), before);
}

TEST_P(LoopDeviceTest, MountedItIsBusy) {
  if (!attach("mkfs.ext4 -q -F")) return;
  std::filesystem::create_directory(folder.str());
  mounted = output_of("mount " + device + " " + folder.str()).has_value();
  ASSERT_TRUE(mounted);
  expect_busy();
}

TEST_P(LoopDeviceTest, OpenedTwiceItIsBusy) {
  if (!attach("")) return;
  auto first = open_io(device, options());
  expect_busy();
  first.reset();
  EXPECT_NO_THROW((void)open_io(device, {.io = GetParam(), .whole_device = true}));
}

INSTANTIATE_TEST_SUITE_P(BackEnds, LoopDeviceTest,
                         testing::Values(IoChoice::kPosix, IoChoice::kUring), [](const auto& each) {
                           return each.param == IoChoice::kPosix ? "posix" : "uring";
                         });

}  // namespace
}  // namespace sluiceway::test
