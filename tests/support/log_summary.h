// Summarizes a scalar log without knowing which base there is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/zo/replay.h"
#include "runtime/engine/zo/scalar_log.h"

namespace sluiceway::test {

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

inline LogSummary inspect_log(const std::string& path) {
  LogReading reading = read_log(LogFile(path, Access::kRead, {}));
  const LogHistory& history = reading.history;
  LogSummary summary;
  summary.header = history.header();
  summary.file_bytes = reading.bytes;
  summary.bytes_per_entry = entry_bytes(history.header().shape);
  summary.entries = history.entries();
  summary.updates = history.updates();
  summary.first_step = history.first_step();
  summary.next_step = history.next_step();
  for (std::uint64_t step = summary.first_step; step < summary.next_step; ++step) {
    if (history.update(step).non_finite) ++summary.non_finite_updates;
  }
  summary.bases = history.bases();
  summary.gammas = gammas(history, summary.bases.front(), summary.next_step);
  for (const std::uint64_t entries : history.left_lines()) {
    summary.left_lines.push_back({entries, history.next_step_after(entries)});
  }
  summary.lost = std::move(reading.lost);
  return summary;
}

}  // namespace sluiceway::test
