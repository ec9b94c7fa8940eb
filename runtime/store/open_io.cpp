#include "runtime/store/open_io.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/store/drive_file.h"
#include "runtime/store/layout.h"
#include "runtime/store/new_file.h"
#include "runtime/store/posix_io.h"
#include "runtime/store/uring_io.h"

namespace sluiceway {
namespace {

[[noreturn]] void refuse_for_room(const std::string& path, std::uint64_t size_bytes,
                                  std::uint64_t free_bytes, int error_number) {
  throw IoError(concat("create_drive_file: ", path, " needs ", format_bytes(size_bytes),
                       ", but only ", format_bytes(free_bytes), " are free there (",
                       std::generic_category().message(error_number),
                       "); free space, or choose another folder"),
                error_number, path, 0);
}

std::uint64_t free_bytes_at(int fd, const std::string& path) {
  struct statvfs about {};
  check_syscall(fstatvfs(fd, &about), "fstatvfs", path);
  return std::uint64_t{about.f_bavail} * about.f_frsize;
}

// `grow` returns 0 or errno. It is not called where it must fail, so that it does not fill the disk
// for a moment.
template <typename Grow>
void grow_to(std::uint64_t size_bytes, std::uint64_t free_bytes, const std::string& path,
             const Grow& grow) {
  const int error_number = size_bytes > free_bytes ? ENOSPC : grow(size_bytes);
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) {
    refuse_for_room(path, size_bytes, free_bytes, error_number);
  }
  errno = error_number;
  check_syscall(error_number == 0 ? 0 : -1, "posix_fallocate", path);
}

void allocate(int fd, const std::string& path, std::uint64_t size_bytes) {
  grow_to(size_bytes, free_bytes_at(fd, path), path,
          [fd](std::uint64_t bytes) { return posix_fallocate(fd, 0, static_cast<off_t>(bytes)); });
  check_syscall(fsync(fd), "fsync", path);
}

}  // namespace

IoChoice parse_io_choice(std::string_view name) {
  if (name == "auto") return IoChoice::kAuto;
  if (name == "uring") return IoChoice::kUring;
  if (name == "posix") return IoChoice::kPosix;
  throw_invalid_argument(
      concat("parse_io_choice: io is \"", name, "\", expected auto, uring or posix"));
}

std::unique_ptr<RawIo> open_io(const std::string& path, const OpenOptions& options) {
  SLUICEWAY_CHECK(options.depth >= 1 && options.depth <= OpenOptions::kMostDepth, "open_io: ", path,
                  ": depth ", options.depth, ", expected 1 to ", OpenOptions::kMostDepth);
  SLUICEWAY_CHECK(std::isfinite(options.rate_gbps) && options.rate_gbps >= 0, "open_io: ", path,
                  ": rate is ", options.rate_gbps, " GB/s, expected 0 (not paced) or more");
  const bool paced = options.rate_gbps > 0;
  SLUICEWAY_CHECK(!paced || options.io != IoChoice::kUring, "open_io: ", path,
                  ": a paced drive cannot be used through uring; choose auto or posix");
  DriveFile file(path, options);
  if (paced || options.io == IoChoice::kPosix) {
    return make_posix_io(std::move(file), options.depth, "", options.rate_gbps);
  }
  try {
    return make_uring_io(file, options.depth, options.memory);
  } catch (const Unavailable& error) {
    if (options.io == IoChoice::kUring) throw;
    return make_posix_io(std::move(file), options.depth,
                         concat(error.what(), "; using threads with pread and pwrite"));
  }
}

void create_drive_file(const std::string& path, std::uint64_t size_bytes) {
  SLUICEWAY_CHECK(size_bytes >= 1 && size_bytes <= INT64_MAX, "create_drive_file: ", path, ": ",
                  format_bytes(size_bytes), ", expected 1 to ", INT64_MAX);
  const OpenFd folder(folder_of(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const OpenFd file(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC);
  try {
    allocate(file.get(), path, size_bytes);
    check_syscall(fsync(folder.get()), "fsync", folder_of(path));
  } catch (...) {
    unlink(path.c_str());
    throw;
  }
}

std::unique_ptr<RawIo> open_nameless_io(const std::string& path, std::uint64_t size_bytes,
                                        const OpenOptions& options) {
  const auto drawn = std::bit_cast<std::array<std::uint64_t, 2>>(random_id());
  const std::string name = concat(path, ".", to_hex(drawn[0]));
  create_drive_file(name, kBlockBytes);
  std::unique_ptr<RawIo> io;
  try {
    io = open_io(name, options);
  } catch (...) {
    unlink(name.c_str());
    throw;
  }
  unlink(name.c_str());
  grow_to(size_bytes, std::filesystem::space(folder_of(path)).available, path,
          [&io](std::uint64_t bytes) { return io->grow(bytes); });
  return io;
}

}  // namespace sluiceway
