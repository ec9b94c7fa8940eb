// The state of a zeroth-order run in some tens of bytes per step: an append-only file beside a
// base.
//
// Theta of every step is the base plus the replay() of the log. Nothing else is saved, and written
// bytes never change. docs/zo_log.md has the grammar and the rules.
//
// Durability: an entry is one write(), so a killed process loses no entry for which append()
// returned. A power cut loses entries that were not synced. fdatasync took 4 ms at the median on
// the disk that was measured (12 ms at most of 300), as long as a small step. So append() syncs
// at most once per `sync_interval`, which costs a run at most about 1 %; sync() and closing always
// sync. Steps of the last second lost in a power cut are made again, with the same noise.
// announce(), rollback(), restore() and branch() sync before they return, because other files rely
// on them.
//
// The file: one process writes it, only at its end, and holds its lock (runtime/store/file_lock.h).
// Readers take no lock; they see a prefix of the appended entries, perhaps with a part of the last.
//
// Damage: a log is read up to the first entry that does not hold. The rest is lost(); open() warns
// of it if it may write. It stays in the file until something is appended; then its whole entries
// are kept beside the log, as PATH.lost.<sum>, and the file is cut.
//
// Thread safety: one thread at a time. A second process that opens it for writing gets EBUSY.
// Errors:        IoError: path, errno; EBUSY if another process has it. Corrupt: not a log.
//                Unavailable: a later version. InvalidArgument: another shape, another base, a step
//                that does not follow. After an error nothing was appended, unless the text says
//                otherwise. After a failed sync the log accepts nothing more: open it again.
// Cost:          memory of about the file's size.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/zo/log_history.h"
#include "runtime/engine/zo/replay.h"
#include "runtime/store/file_lock.h"
#include "runtime/store/new_file.h"

namespace sluiceway {

// Ownership: move-only; closes and so unlocks on destruction.
class LogFile {
 public:
  LogFile(const std::string& path, Access access, std::chrono::milliseconds busy_wait);

  const std::string& path() const noexcept { return path_; }
  std::uint64_t size_bytes() const;
  // Returns the bytes from `offset` on, at most `most`.
  std::vector<std::byte> read(std::uint64_t offset, std::uint64_t most) const;

  // Uses one write(), so a process killed after it loses nothing of it.
  void write(std::span<const std::byte> bytes, std::uint64_t offset);
  void truncate(std::uint64_t size_bytes);
  void sync();  // After it threw, never call it again: the system may forget the loss.

 private:
  std::string path_;
  OpenFd fd_;
};

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

// Reads up to the first damage, and reports the rest as lost. Errors as for a header
// (log_format.h), without which nothing can be read.
LogReading read_log(const LogFile& file);

// Parses `bytes`; errors name `path`.
LogReading read_log(std::span<const std::byte> bytes, const std::string& path);

// The arena's account: which weights it holds, and the log that made them, if any.
struct ArenaBase {
  Base base;
  LogId made_with{};  // Zeros: no log; these are the initial weights of a run.
};

struct StepRate {
  double lr = 0;
  double weight_decay = 0;
};

struct StepScalars {
  std::uint64_t step = 0;
  std::span<const float> g;              // One per direction; 0 where the loss was not finite.
  std::span<const StepRate> rates;       // One per group.
  std::span<const std::uint64_t> seeds;  // One per direction if the log records them, else none.
  bool non_finite = false;               // Some loss was not finite.
};

struct LogOptions {
  Access access = Access::kReadWrite;
  std::chrono::milliseconds busy_wait{2000};
  std::chrono::milliseconds sync_interval{1000};  // 0: every append() is durable.
};

class ScalarLog {
 public:
  // An existing file is EEXIST. The log is on the medium when this returns.
  static ScalarLog create(const std::string& path, const LogShape& shape, const Base& base,
                          const LogOptions& options = {});
  // `arena` must be a base of the log's line, or one that this log made but did not record.
  static ScalarLog open(const std::string& path, const LogShape& shape, const ArenaBase& arena,
                        const LogOptions& options = {});
  ScalarLog(ScalarLog&&) noexcept = default;
  ScalarLog& operator=(ScalarLog&&) = delete;
  ~ScalarLog();  // Syncs; warns if that fails.

  void append(const StepScalars& scalars);  // InvalidArgument also as for replay().
  void sync();                              // Makes all appended entries durable.

  // ---- Lines ----
  // Continues from an older theta. The abandoned steps stay in the file, and in a branch() made
  // before; restore() returns to them.
  void rollback(std::uint64_t step);
  // Returns to the line that the log had after its first `entries` entries, at its end.
  void restore(std::uint64_t entries);
  // Writes a new log of the line up to `step`, with an id of its own: whole and durable, or not at
  // all.
  void branch(std::uint64_t step, const std::string& path) const;

  // ---- A new base (docs/zo_log.md section 4) ----
  void announce(const Base& base);  // First; durable when it returns. Keeps the base in use.
  void adopt(const Base& base);     // Last, after the arena's commit; pending starts there.

  const Base& base() const noexcept { return base_; }  // The base in use.
  const LogId& id() const noexcept { return history().header().id; }
  std::uint64_t next_step() const noexcept { return history().next_step(); }
  // Pending updates on the base in use; `from` and `to` as in replay.h.
  Replay pending(std::uint32_t group, std::uint64_t from, std::uint64_t to) const;
  const LogHistory& history() const noexcept { return reading_.history; }
  const std::optional<LogLoss>& lost() const noexcept { return reading_.lost; }
  std::uint64_t synced_entries() const noexcept { return synced_entries_; }

 private:
  ScalarLog(LogFile file, LogReading reading, const LogOptions& options);

  void use_base(const ArenaBase& arena);
  void set_base(const Base& base);
  void check_writable() const;
  void write(const LogEntry& entry);  // Also applies it.
  void put(const LogEntry& entry);
  void cut_tail();

  std::unique_ptr<LogFile> file_;  // Null after a move.
  LogReading reading_;
  LogOptions options_;
  Base base_;
  std::vector<double> gammas_;     // At next_step(), from base_ on.
  std::uint64_t end_ = 0;          // End of the valid entries.
  bool has_tail_ = false;          // The file may be longer than that.
  std::optional<BaseEntry> owed_;  // Applied; written before the next entry.
  std::uint64_t synced_entries_ = 0;
  std::chrono::steady_clock::time_point last_sync_;
  std::string failure_;
};

}  // namespace sluiceway
