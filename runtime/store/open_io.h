// Opens a file or a whole block device for requests, by io_uring or by a pool of threads.
//
// With O_DIRECT where the file system has it (tmpfs has not: Properties::direct says so),
// alignments as statx() gives them, else 4096.
//
// A drive is locked against every other process while it is open. Requests that a killed process
// had in flight go on without it, and hold the lock until they end: whoever opens the drive next
// waits for them, `busy_wait` long at most, so that no write of the dead lands after the living
// have read.
//
// Errors: IoError, with path and errno: does not exist, may not be written, belongs to another
//         process (EBUSY). InvalidArgument: neither file nor block device, a block device without
//         `whole_device`, one that holds something (the reason is named), a bad depth. Unavailable:
//         uring was asked for and is not there, with the reason. Nothing on the drive was changed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/store/file_lock.h"
#include "runtime/store/raw_io.h"

namespace sluiceway {

// kAuto is uring, or posix where the system does not allow uring; Properties::note then says why.
enum class IoChoice : std::uint8_t { kAuto, kUring, kPosix };
IoChoice parse_io_choice(std::string_view name);  // InvalidArgument: names those that there are.

struct OpenOptions {
  static constexpr std::size_t kMostDepth = 1024;

  IoChoice io = IoChoice::kAuto;
  Access access = Access::kReadWrite;
  std::size_t depth = 32;                     // Requests in the system at once, 1 to kMostDepth.
  bool whole_device = false;                  // Allows a block device, whose content is then ours.
  std::chrono::milliseconds busy_wait{2000};  // Before a drive in use is refused.
  std::span<std::byte> memory{};  // Offered to io_uring for registration; outlives the drive.
};

[[nodiscard]] std::unique_ptr<RawIo> open_io(const std::string& path, const OpenOptions& options);

// Makes a new file of `size_bytes`, with its room allocated and everything about it on the medium,
// also its name. IoError: it exists, the folder cannot be written, or there is no room (the text
// has both byte counts); nothing is left behind.
void create_drive_file(const std::string& path, std::uint64_t size_bytes);

}  // namespace sluiceway
