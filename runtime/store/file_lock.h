// The lock that keeps two processes from writing one file, with a bounded wait for its holder.
//
// A killed process may hold its lock a moment longer than it lives: through requests still in the
// system, or through a child that has the same file open.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

namespace sluiceway {

// Several readers may share a drive; a writer needs it alone.
enum class Access : std::uint8_t { kRead, kReadWrite };

// Repeats a call while it fails with `busy`, until `give_up`.
template <typename Call>
int while_busy(std::chrono::steady_clock::time_point give_up, int busy, const Call& call) {
  for (;;) {
    const int result = call();
    if (result >= 0 || errno != busy || std::chrono::steady_clock::now() >= give_up) return result;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Locks an open file until it is closed. Throws IoError with EBUSY after `give_up`; the text begins
// with `who`.
void lock_file(int fd, const std::string& path, Access access,
               std::chrono::steady_clock::time_point give_up, const char* who);

}  // namespace sluiceway
