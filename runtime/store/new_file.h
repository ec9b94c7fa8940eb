// Makes new files whose names are on the medium before anybody relies on them.
//
// Errors: IoError, with path and errno; no new name is left behind.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace sluiceway {

// Owns a file descriptor. IoError: the file could not be opened.
class OpenFd {
 public:
  OpenFd(const std::string& path, int flags);
  OpenFd(OpenFd&& other) noexcept;
  OpenFd& operator=(OpenFd&&) = delete;
  ~OpenFd();
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

std::string folder_of(const std::string& path);

// Returns sixteen bytes that no other call has returned, on any machine.
std::array<std::byte, 16> random_id();

// Makes a file either with all of its bytes, durably, or not at all. Writes under another name,
// PATH.new.*, first; a kill may leave that behind. An existing file is EEXIST.
void write_new_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace sluiceway
