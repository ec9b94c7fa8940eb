// The file of a scalar log, which one process writes, only at its end.
//
// The writer holds its lock (runtime/store/file_lock.h). Readers take no lock; they see a prefix of
// the appended entries, perhaps with a partial last entry.
//
// Ownership:     move-only; closes and so unlocks on destruction.
// Thread safety: one thread at a time.
// Errors:        IoError, with path and errno. InvalidArgument: not a regular file.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/store/file_lock.h"
#include "runtime/store/new_file.h"

namespace sluiceway {

class LogFile {
 public:
  LogFile(const std::string& path, Access access, std::chrono::milliseconds busy_wait);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size_bytes() const;
  // Returns the bytes from `offset` on, at most `most`.
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t most) const;

  // Uses one write(), so a process killed after it loses nothing of it.
  void write(std::span<const std::byte> bytes, std::uint64_t offset);
  void truncate(std::uint64_t size_bytes);
  void sync();  // After it threw, never call it again: the system may forget the loss.

 private:
  std::string path_;
  OpenFd fd_;
};

}  // namespace sluiceway
