// Reads a scalar log up to its first damage, and reports the rest as lost.
//
// Thread safety: pure functions.
// Errors:        as for a header (log_format.h), without which nothing can be read; IoError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/engine/zo/log_file.h"
#include "runtime/engine/zo/log_history.h"

namespace sluiceway {

// What follows the last entry that holds.
struct LogLoss {
  std::uint64_t offset = 0;  // Of its first byte.
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;  // Whole ones; one that is torn is not counted.
  std::uint64_t step = 0;     // The log goes on from here.
  std::string text;           // All of this, and why.
};

struct LogReading {
  LogHistory history;
  std::optional<LogLoss> lost;
  std::uint64_t bytes = 0;  // All that there are.
};

LogReading read_log(const LogFile& file);

// Of bytes that are said to be those of `path`.
LogReading read_log(std::span<const std::byte> bytes, const std::string& path);

}  // namespace sluiceway
