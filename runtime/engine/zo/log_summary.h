// Summarizes a scalar log without knowing which base there is.
//
// Errors: as in scalar_log.h; takes no lock and needs no write permission.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/zo/log_reader.h"

namespace sluiceway {

struct LogSummary {
  LogHeader header;
  std::uint64_t file_bytes = 0;
  std::uint64_t bytes_per_entry = 0;
  std::uint64_t entries = 0;
  std::uint64_t updates = 0;             // On all lines.
  std::uint64_t first_step = 0;          // The line has updates from this step
  std::uint64_t next_step = 0;           // to the one before this.
  std::uint64_t non_finite_updates = 0;  // On the line.
  std::vector<Base> bases;               // On the line.
  std::vector<double> gammas;            // One per group, at next_step, from the line's first base.
  struct LeftLine {
    std::uint64_t entries = 0;  // Argument of ScalarLog::restore().
    std::uint64_t next_step = 0;
  };
  std::vector<LeftLine> left_lines;
  std::optional<LogLoss> lost;
};

LogSummary inspect_log(const std::string& path);

}  // namespace sluiceway
