#include "runtime/store/new_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"

namespace sluiceway {
namespace {

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = write(fd, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    done += static_cast<std::size_t>(
        check_syscall(written, "write", path, static_cast<std::int64_t>(done)));
  }
}

// Fails with EEXIST rather than replace a file.
void rename_to_new(const std::string& from, const std::string& to) {
  int result = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (result < 0 && (errno == EINVAL || errno == ENOSYS)) {  // Not supported by every file system.
    if (access(to.c_str(), F_OK) == 0) {
      errno = EEXIST;
    } else {
      result = rename(from.c_str(), to.c_str());
    }
  }
  check_syscall(result, "rename", to);
}

}  // namespace

OpenFd::OpenFd(const std::string& path, int flags)
    : fd_(static_cast<int>(check_syscall(open(path.c_str(), flags, 0666), "open", path))) {}

OpenFd::OpenFd(OpenFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

OpenFd::~OpenFd() {
  if (fd_ >= 0) close(fd_);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::array<std::byte, 16> random_id() {
  std::random_device source;
  std::array<std::byte, 16> id;
  for (std::byte& byte : id) byte = static_cast<std::byte>(source() & 0xFF);
  return id;
}

void write_new_file(const std::string& path, std::span<const std::byte> bytes) {
  const OpenFd folder(folder_of(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  std::random_device source;
  const std::string fresh = concat(path, ".new.", to_hex(source()));
  const OpenFd file(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
  try {
    write_all(file.get(), bytes, fresh);
    check_syscall(fsync(file.get()), "fsync", fresh);
    rename_to_new(fresh, path);
  } catch (...) {
    unlink(fresh.c_str());
    throw;
  }
  check_syscall(fsync(folder.get()), "fsync", folder_of(path));
}

}  // namespace sluiceway
