// An open and locked file or block device, with its properties for direct I/O.
//
// Ownership:     move-only; closes and so unlocks on destruction.
// Thread safety: const calls from any thread.
// Errors:        as in open_io.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "runtime/store/open_io.h"
#include "runtime/store/raw_io.h"

namespace sluiceway {

class DriveFile {
 public:
  DriveFile(const std::string& path, const OpenOptions& options);
  DriveFile(DriveFile&& other) noexcept;
  DriveFile& operator=(DriveFile&&) = delete;
  ~DriveFile();

  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }
  std::uint64_t size_bytes() const noexcept;
  int flush() const noexcept;                         // 0, or errno.
  int grow(std::uint64_t size_bytes) const noexcept;  // 0, or errno.

  RawIo::Properties properties() const;  // Excludes properties that a back end adds.

 private:
  using Clock = std::chrono::steady_clock;
  void open_it(const OpenOptions& options, Clock::time_point give_up);
  std::string path_;
  bool block_device_ = false;
  bool direct_ = false;
  int fd_ = -1;
};

}  // namespace sluiceway
