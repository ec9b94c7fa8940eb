#include "runtime/engine/zo/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

struct stat about(int fd, const std::string& path) {
  struct stat found {};
  check_syscall(fstat(fd, &found), "fstat", path);
  return found;
}

}  // namespace

LogFile::LogFile(const std::string& path, Access access, std::chrono::milliseconds busy_wait)
    // A pipe must not be waited for.
    : path_(path),
      fd_(path, O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (access == Access::kRead ? O_RDONLY : O_RDWR)) {
  SLUICEWAY_CHECK(S_ISREG(about(fd_.get(), path).st_mode), "scalar log: ", path,
                  " is not a regular file; choose another path");
  if (access == Access::kRead) return;
  lock_file(fd_.get(), path, access, std::chrono::steady_clock::now() + busy_wait, "scalar log");
}

std::uint64_t LogFile::size_bytes() const {
  return static_cast<std::uint64_t>(about(fd_.get(), path_).st_size);
}

std::vector<std::byte> LogFile::read(std::uint64_t offset, std::uint64_t most) const {
  const std::uint64_t size = size_bytes();
  std::vector<std::byte> bytes(offset < size ? std::min(most, size - offset) : 0);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto at = static_cast<off_t>(offset + done);
    const ssize_t got = pread(fd_.get(), bytes.data() + done, bytes.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (check_syscall(got, "pread", path_, at) == 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

void LogFile::write(std::span<const std::byte> bytes, std::uint64_t offset) {
  const auto at = static_cast<off_t>(offset);
  ssize_t written = 0;
  do {
    written = pwrite(fd_.get(), bytes.data(), bytes.size(), at);
  } while (written < 0 && errno == EINTR);
  if (check_syscall(written, "pwrite", path_, at) == static_cast<std::int64_t>(bytes.size()))
    return;
  // The rest has no room, which only a second call would say by its number.
  throw IoError(concat("scalar log: ", path_, " took ", written, " of ", bytes.size(),
                       " bytes at byte ", offset, "; free space there"),
                ENOSPC, path_, at);
}

void LogFile::truncate(std::uint64_t size_bytes) {
  check_syscall(ftruncate(fd_.get(), static_cast<off_t>(size_bytes)), "ftruncate", path_,
                static_cast<std::int64_t>(size_bytes));
}

void LogFile::sync() { check_syscall(fdatasync(fd_.get()), "fdatasync", path_); }

}  // namespace sluiceway
