// New files whose names are on the medium before anybody relies on them.
//
// Errors: IoError, with path and errno; no new name is left behind.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace sluiceway {

// Owns a descriptor. IoError: not opened.
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

// Sixteen bytes that no other call returned, on any machine.
std::array<std::byte, 16> random_id();

// A file is there with all of its bytes, durably, or is not there: it is written under another
// name, PATH.new.*, which a kill may leave behind. A file that is there already is EEXIST.
void write_new_file(const std::string& path, std::span<const std::byte> bytes);

}  // namespace sluiceway
