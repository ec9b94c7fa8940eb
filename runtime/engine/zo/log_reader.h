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

// The part after the last valid entry.
struct LogLoss {
  std::uint64_t offset = 0;  // Offset of its first byte.
  std::uint64_t bytes = 0;
  std::uint64_t entries = 0;  // Whole entries; a torn one is not counted.
  std::uint64_t step = 0;     // The log continues from this step.
  std::string text;           // Describes the loss and its reason.
};

struct LogReading {
  LogHistory history;
  std::optional<LogLoss> lost;
  std::uint64_t bytes = 0;  // Size of the whole log.
};

LogReading read_log(const LogFile& file);

// Parses `bytes`; errors name `path`.
LogReading read_log(std::span<const std::byte> bytes, const std::string& path);

}  // namespace sluiceway
