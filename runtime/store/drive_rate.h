// Measures briefly how fast a drive moves blocks of one size at a given queue depth.
//
// Blocks are taken in order from the start of the drive, over and over. Each of the `depth` places
// requests its next block as soon as its last one is done. When the time is over, requests in
// flight are waited for and counted.
//
// Lifetime: `memory` must live until the call returns.
// Errors:   InvalidArgument: nothing to move, or too little memory. IoError of the first failed
//           request; exceptions from `check`. No request is in flight then.
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
  std::uint64_t blocks = 1;       // Number of blocks used, from the start.
  std::size_t depth = 32;         // Requests in flight at once.
  std::span<std::byte> memory{};  // `depth` blocks; writes send its content.
  std::uint64_t most_requests = std::numeric_limits<std::uint64_t>::max();
  std::chrono::duration<double> longest{std::numeric_limits<double>::infinity()};
  bool flush = true;              // After writes; its time counts.
  std::function<void()> check{};  // Called ten times a second; an exception ends the measurement.
};

struct DriveRate {
  std::uint64_t requests = 0;  // If fewer than `blocks`, only the first `requests` were used.
  std::uint64_t bytes = 0;     // Read and written.
  double seconds = 0;
  double processor_seconds = 0;  // Of all threads of the process.
};

DriveRate measure_rate(Drive& drive, const RateOptions& options);

}  // namespace sluiceway
