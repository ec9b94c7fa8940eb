// How fast a drive is for blocks of one size, so many at once: a short measurement.
//
// Blocks are taken in order from the start of the drive, over and over. Every place of `depth` asks
// for its next block as soon as it has one; when the time is over, what is in flight is waited for
// and counts.
//
// Lifetime: `memory` until the call returns.
// Errors:   InvalidArgument: nothing to move, or too little memory. IoError of the first request
//           that failed; what `check` throws. Nothing is in flight then.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>

#include "runtime/store/drive.h"

namespace sluiceway {

enum class Mix : std::uint8_t { kRead, kWrite, kBoth };  // kBoth: read, write, read and so on.
Mix parse_mix(std::string_view name);                    // "read", "write", "both".

struct RateOptions {
  Mix mix = Mix::kRead;
  std::uint64_t block_bytes = std::uint64_t{4} << 20;
  std::uint64_t blocks = 1;       // Of the drive that are used.
  std::size_t depth = 32;         // Requests at once.
  std::span<std::byte> memory{};  // `depth` blocks; a write writes what is there.
  std::uint64_t most_requests = std::numeric_limits<std::uint64_t>::max();
  std::chrono::duration<double> longest{std::numeric_limits<double>::infinity()};
  bool flush = true;              // After writes, within the time.
  std::function<void()> check{};  // Ten times a second; what it throws ends the measurement.
};

struct DriveRate {
  std::uint64_t requests = 0;  // Of the first blocks each was used, if they are fewer than those.
  std::uint64_t bytes = 0;     // Read and written.
  double seconds = 0;
  double processor_seconds = 0;  // Of all threads of the process.
};

DriveRate measure_rate(Drive& drive, const RateOptions& options);

}  // namespace sluiceway
