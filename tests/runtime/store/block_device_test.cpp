// block_device: a device that holds something is rejected by name, and stays unchanged.
#include "runtime/store/block_device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "kernels/base/check.h"
#include "runtime/store/open_io.h"
#include "tests/support/io_back_ends.h"

namespace sluiceway::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint64_t kImageBytes = 16 << 20;

struct ImageCase {
  std::string name;
  std::string command;  // Followed by the image's path.
  std::string says;
};

// Run by tools from Debian's util-linux, fdisk and e2fsprogs.
const ImageCase kImages[] = {
    {"ext4", "mkfs.ext4 -q -F -L data", "ext4 file system \"data\""},
    {"ext2", "mkfs.ext2 -q -F", "ext2 file system"},
    {"swap", "mkswap", "swap area"},
    {"gpt", "echo 'label: gpt\nsize=4MiB' | sfdisk -q", "gpt partition table"},
    {"dos", "echo 'label: dos\nsize=4MiB' | sfdisk -q", "dos partition table"},
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class OpenedFile {
 public:
  explicit OpenedFile(const std::string& path, int flags = 0)
      : fd_(static_cast<int>(
            check_syscall(open(path.c_str(), O_RDWR | O_CLOEXEC | flags), "open", path))) {}
  ~OpenedFile() { close(fd_); }
  int get() const { return fd_; }

 private:
  int fd_;
};

class SignatureTest : public testing::TestWithParam<ImageCase> {};

TEST_P(SignatureTest, IsFoundNamedAndLeftAlone) {
  const ScratchPath path;
  create_drive_file(path.str(), kImageBytes);
  const std::string command =
      "PATH=$PATH:/sbin:/usr/sbin; " + GetParam().command + " " + path.str() + " >/dev/null 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const std::string before = content(path.str());
  for (const int flags : {0, O_DIRECT}) {
    const OpenedFile file(path.str(), flags);
    EXPECT_THAT([&] { check_unused(file.get(), path.str()); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(path.str()),
                                                     HasSubstr("has a " + GetParam().says),
                                                     HasSubstr("wipefs --all"))));
  }
  EXPECT_EQ(content(path.str()), before);
}

INSTANTIATE_TEST_SUITE_P(Images, SignatureTest, testing::ValuesIn(kImages),
                         [](const auto& each) { return each.param.name; });

// Members of volume groups and arrays, without the tools that make them: only the first bytes that
// these write. libblkid decides what they are.
class MemberTest : public testing::Test {
 protected:
  MemberTest() { create_drive_file(path.str(), kImageBytes); }

  template <typename T>
  void put(std::size_t at, T value) {
    std::memcpy(block.data() + at, &value, sizeof value);
  }
  template <typename T>
  T get(std::size_t at) const {
    T value;
    std::memcpy(&value, block.data() + at, sizeof value);
    return value;
  }
  std::string found_with_block_at(std::streamoff offset) {
    std::fstream file(path.str(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(offset).write(block.data(), static_cast<std::streamsize>(block.size()));
    file.close();
    return signature_on(OpenedFile(path.str()).get(), path.str()).value_or("nothing");
  }

  const ScratchPath path;
  std::string block = std::string(512, '\0');
};

TEST_F(MemberTest, OfAVolumeGroupIsFound) {
  block.replace(0, 8, "LABELONE");
  put<std::uint64_t>(8, 1);    // Its sector.
  put<std::uint32_t>(20, 32);  // Where the header of the physical volume starts.
  block.replace(24, 8, "LVM2 001");
  block.replace(32, 32, "abcdefghijklmnopqrstuvwxyz012345");
  std::uint32_t crc = 0xf597a6cf;  // CRC-32 with LVM's own start value, from byte 20 on.
  for (std::size_t at = 20; at < block.size(); ++at) {
    crc ^= static_cast<unsigned char>(block[at]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  put(16, crc);
  EXPECT_EQ(found_with_block_at(512), "LVM2_member member of an array or volume group");
}

TEST_F(MemberTest, OfAnArrayIsFound) {
  put<std::uint32_t>(0, 0xa92b4efc);
  put<std::uint32_t>(4, 1);    // Version 1.2: one page after the start.
  put<std::uint32_t>(92, 2);   // Disks.
  put<std::uint64_t>(144, 8);  // Its own sector.
  std::uint64_t sum = 0;
  for (std::size_t at = 0; at < 256; at += 4) sum += get<std::uint32_t>(at);
  put(216, static_cast<std::uint32_t>((sum & 0xffffffff) + (sum >> 32)));
  EXPECT_EQ(found_with_block_at(4096), "linux_raid_member member of an array or volume group");
}

TEST(CheckUnusedTest, ZerosAndRandomBytesAreNobodys) {
  const ScratchPath path;
  create_drive_file(path.str(), kImageBytes);
  {
    const OpenedFile file(path.str());
    EXPECT_EQ(signature_on(file.get(), path.str()), std::nullopt);
    Rng rng(20240611);
    const AlignedBytes noise(1 << 20, rng);
    ASSERT_EQ(pwrite(file.get(), noise.data(), noise.size(), 0), 1 << 20);
    EXPECT_NO_THROW(check_unused(file.get(), path.str()));
  }
}

}  // namespace
}  // namespace sluiceway::test
