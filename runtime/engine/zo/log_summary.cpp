#include "runtime/engine/zo/log_summary.h"

#include <utility>

#include "runtime/engine/zo/replay.h"

namespace sluiceway {

LogSummary inspect_log(const std::string& path) {
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

}  // namespace sluiceway
