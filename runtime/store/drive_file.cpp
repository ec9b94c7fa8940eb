#include "runtime/store/drive_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/store/block_device.h"
#include "runtime/store/file_lock.h"

namespace sluiceway {
namespace {

// Returns whether the file system accepts O_DIRECT but copies through the page cache anyway.
bool lives_in_memory(int fd) noexcept {
  struct statfs about {};
  return fstatfs(fd, &about) == 0 && (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

bool check_is_block_device(const std::string& path, bool whole_device) {
  struct stat about {};
  check_syscall(stat(path.c_str(), &about), "stat", path);
  if (S_ISREG(about.st_mode)) return false;
  SLUICEWAY_CHECK(S_ISBLK(about.st_mode), "open_io: ", path,
                  " is neither a file nor a block device; name one of these");
  SLUICEWAY_CHECK(whole_device, "open_io: ", path,
                  " is a block device; name a file, or set whole_device to use the whole device "
                  "and lose its content");
  return true;
}

int open_flags(Access access, bool block_device) noexcept {
  const int flags = O_CLOEXEC | O_NOCTTY | (access == Access::kRead ? O_RDONLY : O_RDWR);
  // On a device, O_EXCL excludes mounts, arrays and other exclusive openers.
  return block_device && access == Access::kReadWrite ? flags | O_EXCL : flags;
}

// Without an answer from the system, assumes alignments that suit every drive of today.
void ask_for_alignment(int fd, RawIo::Properties& properties) noexcept {
#ifdef STATX_DIOALIGN
  struct statx about {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) != 0) return;
  if ((about.stx_mask & STATX_DIOALIGN) == 0 || about.stx_dio_offset_align == 0) return;
  properties.offset_alignment = about.stx_dio_offset_align;
  properties.address_alignment = about.stx_dio_mem_align;
#endif
}

}  // namespace

DriveFile::DriveFile(const std::string& path, const OpenOptions& options)
    : path_(path), block_device_(check_is_block_device(path, options.whole_device)) {
  const Clock::time_point give_up = Clock::now() + options.busy_wait;
  open_it(options, give_up);
  try {
    // A device node lies in a memory file system; the device itself does not.
    if (!block_device_ && lives_in_memory(fd_)) direct_ = false;
    lock_file(fd_, path, options.access, give_up, "open_io");
    if (block_device_ && options.access == Access::kReadWrite) check_unused(fd_, path);
  } catch (...) {
    close(fd_);
    throw;
  }
}

DriveFile::DriveFile(DriveFile&& other) noexcept
    : path_(std::move(other.path_)),
      block_device_(other.block_device_),
      direct_(other.direct_),
      fd_(std::exchange(other.fd_, -1)) {}

DriveFile::~DriveFile() {
  if (fd_ >= 0) close(fd_);
}

void DriveFile::open_it(const OpenOptions& options, Clock::time_point give_up) {
  const int flags = open_flags(options.access, block_device_);
  fd_ = while_busy(give_up, EBUSY, [&] { return open(path_.c_str(), flags | O_DIRECT); });
  direct_ = fd_ >= 0;
  if (fd_ < 0 && errno == EINVAL) fd_ = open(path_.c_str(), flags);
  if (fd_ < 0 && errno == EBUSY) {
    throw IoError(concat("open_io: ", path_, " is mounted or in use; ",
                         "unmount it, or stop the program that uses it"),
                  EBUSY, path_, 0);
  }
  check_syscall(fd_, "open", path_);
}

std::uint64_t DriveFile::size_bytes() const noexcept {
  std::uint64_t device_bytes = 0;
  if (block_device_) return ioctl(fd_, BLKGETSIZE64, &device_bytes) == 0 ? device_bytes : 0;
  struct stat about {};
  return fstat(fd_, &about) == 0 ? static_cast<std::uint64_t>(about.st_size) : 0;
}

int DriveFile::flush() const noexcept { return fdatasync(fd_) == 0 ? 0 : errno; }

int DriveFile::grow(std::uint64_t size_bytes) const noexcept {
  const std::uint64_t now = this->size_bytes();
  if (size_bytes <= now) return 0;
  if (block_device_) return ENOSPC;
  if (size_bytes > INT64_MAX) return EFBIG;
  const auto from = static_cast<off_t>(now);
  const int error_number = posix_fallocate(fd_, from, static_cast<off_t>(size_bytes) - from);
  // Removes what a failed call may have added.
  if (error_number != 0 && ftruncate(fd_, from) != 0) return errno;
  return error_number;
}

RawIo::Properties DriveFile::properties() const {
  RawIo::Properties properties;
  properties.path = path_;
  properties.direct = direct_;
  properties.block_device = block_device_;
  if (direct_) ask_for_alignment(fd_, properties);
  return properties;
}

}  // namespace sluiceway
