// Opens a file or a whole block device for requests, through io_uring or a pool of threads.
//
// Uses O_DIRECT where the file system has it (tmpfs has not: see Properties::direct), with the
// alignments that statx() gives, else 4096.
//
// An open drive is locked against every other process. Requests of a killed process continue
// without it and hold the lock until they end. Whoever opens the drive next waits for them, at most
// `busy_wait`, so that no write of the dead process lands after the new one has read.
//
// A paced drive (wire.h) carries reads and writes one after another and goes through threads, which
// can wait for its rate.
//
// Errors: IoError, with path and errno: does not exist, may not be written, belongs to another
//         process (EBUSY). InvalidArgument: neither file nor block device, a block device without
//         `whole_device` or with content (the text names it), a bad depth or rate, a
//         rate for uring. Unavailable: uring was
//         requested and cannot be used, with the reason. Nothing on the drive was changed.
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

// kAuto uses uring, or posix where the system does not allow uring; Properties::note then says why.
enum class IoChoice : std::uint8_t { kAuto, kUring, kPosix };
IoChoice parse_io_choice(std::string_view name);  // InvalidArgument: lists the choices.

struct OpenOptions {
  static constexpr std::size_t kMostDepth = 1024;

  IoChoice io = IoChoice::kAuto;
  Access access = Access::kReadWrite;
  std::size_t depth = 32;                     // Requests in the system at once, 1 to kMostDepth.
  bool whole_device = false;                  // Allows a block device, and overwrites its content.
  std::chrono::milliseconds busy_wait{2000};  // Longest wait for a drive in use.
  std::span<std::byte> memory{};  // Offered to io_uring for registration; outlives the drive.
  double rate_gbps = 0;           // Paces the drive, in 1e9 bytes per second; 0: as fast as it is.
};

[[nodiscard]] std::unique_ptr<RawIo> open_io(const std::string& path, const OpenOptions& options);

// Makes a new file of `size_bytes`, with its room allocated and its metadata and name on the
// medium. IoError: it exists, the folder cannot be written, or there is no room (the text has both
// byte counts); nothing is left behind.
void create_drive_file(const std::string& path, std::uint64_t size_bytes);

// Opens a new file of `size_bytes` that has no name and ends with the process. It has one, which
// begins with `path`, until it is open; its room is allocated after that. IoError: no room, with
// both byte counts.
[[nodiscard]] std::unique_ptr<RawIo> open_nameless_io(const std::string& path,
                                                      std::uint64_t size_bytes,
                                                      const OpenOptions& options);

}  // namespace sluiceway
