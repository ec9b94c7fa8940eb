#include "runtime/engine/zo/scalar_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/checksum.h"
#include "runtime/trace/warning.h"

namespace sluiceway {
namespace {

struct stat about(int fd, const std::string& path) {
  struct stat found {};
  check_syscall(fstat(fd, &found), "fstat", path);
  return found;
}

LogLoss loss_of(const LogHistory& history, std::uint64_t offset, std::uint64_t bytes,
                const std::string& path, const std::string& why) {
  const std::uint64_t entries = bytes / entry_bytes(history.header().shape);
  return {
      offset, bytes, entries, history.next_step(),
      concat("scalar log: ", path, " holds up to byte ", offset, ", expected ", offset + bytes,
             "; ", bytes, " bytes (", entries, " whole entries) after it are lost, and the log ",
             "goes on from step ", history.next_step(), " (", why, ")")};
}

LogHeader header_of(std::span<const std::byte> bytes, const std::string& path) {
  try {
    return decode_log_header(bytes);
  } catch (const Corrupt& error) {
    throw Corrupt(concat(path, ": ", error.what(), "; replace it with a copy of the log, or move ",
                         "it away to restart from the base"));
  }
}

std::string to_text(const LogShape& shape) {
  return concat(shape.groups, " groups, ", shape.directions, " directions",
                shape.records_seeds ? " with seeds" : "", ", run seed ", shape.run_seed, ", noise ",
                shape.noise.family, " of rank ", shape.noise.rank, " and period ",
                shape.noise.period_steps);
}

std::string loss_of(const ScalarLog& log) {
  const LogLoss& lost = *log.lost();
  if (lost.entries == 0) return lost.text;
  return concat(lost.text, "; they stay until a step is logged, and are kept beside it then");
}

}  // namespace

LogFile::LogFile(const std::string& path, Access access, std::chrono::milliseconds busy_wait)
    // A pipe must not be waited for.
    : path_(path),
      fd_(path, O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (access == Access::kRead ? O_RDONLY : O_RDWR)) {
  SLUICEWAY_CHECK(S_ISREG(about(fd_.get(), path).st_mode), "scalar log: ", path,
                  " is not a regular file; choose another path");
  if (access == Access::kRead) return;
  lock_file(fd_.get(), path, access, std::chrono::steady_clock::now() + busy_wait, "scalar log");
}

std::uint64_t LogFile::size_bytes() const {
  return static_cast<std::uint64_t>(about(fd_.get(), path_).st_size);
}

std::vector<std::byte> LogFile::read(std::uint64_t offset, std::uint64_t most) const {
  const std::uint64_t size = size_bytes();
  std::vector<std::byte> bytes(offset < size ? std::min(most, size - offset) : 0);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const auto at = static_cast<off_t>(offset + done);
    const ssize_t got = pread(fd_.get(), bytes.data() + done, bytes.size() - done, at);
    if (got < 0 && errno == EINTR) continue;
    if (check_syscall(got, "pread", path_, at) == 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

void LogFile::write(std::span<const std::byte> bytes, std::uint64_t offset) {
  const auto at = static_cast<off_t>(offset);
  ssize_t written = 0;
  do {
    written = pwrite(fd_.get(), bytes.data(), bytes.size(), at);
  } while (written < 0 && errno == EINTR);
  if (check_syscall(written, "pwrite", path_, at) == static_cast<std::int64_t>(bytes.size()))
    return;
  // The rest has no room, which only a second call would say by its number.
  throw IoError(concat("scalar log: ", path_, " took ", written, " of ", bytes.size(),
                       " bytes at byte ", offset, "; free space there"),
                ENOSPC, path_, at);
}

void LogFile::truncate(std::uint64_t size_bytes) {
  check_syscall(ftruncate(fd_.get(), static_cast<off_t>(size_bytes)), "ftruncate", path_,
                static_cast<std::int64_t>(size_bytes));
}

void LogFile::sync() { check_syscall(fdatasync(fd_.get()), "fdatasync", path_); }

LogReading read_log(const LogFile& file) {
  (void)header_of(file.read(0, kLogHeaderBytes), file.path());  // Before all of what may be no log.
  return read_log(file.read(0, std::numeric_limits<std::uint64_t>::max()), file.path());
}

LogReading read_log(std::span<const std::byte> bytes, const std::string& path) {
  LogReading reading{LogHistory(header_of(bytes, path)), {}, bytes.size()};
  LogHistory& history = reading.history;
  const std::size_t size = entry_bytes(history.header().shape);
  std::size_t at = kLogHeaderBytes;
  std::string why;
  try {
    while (bytes.size() - at >= size) {
      history.apply(decode_log_entry(bytes.subspan(at, size), history.header(), history.entries()));
      at += size;
    }
    why = "the last entry is torn";
  } catch (const Corrupt& error) {
    why = error.what();
  } catch (const InvalidArgument& error) {
    why = error.what();
  }
  if (at < bytes.size()) reading.lost = loss_of(history, at, bytes.size() - at, path, why);
  return reading;
}

ScalarLog::ScalarLog(LogFile file, LogReading reading, const LogOptions& options)
    : file_(std::make_unique<LogFile>(std::move(file))),
      reading_(std::move(reading)),
      options_(options),
      last_sync_(std::chrono::steady_clock::now()) {
  end_ = kLogHeaderBytes + history().entries() * entry_bytes(history().header().shape);
  has_tail_ = lost().has_value();
}

ScalarLog ScalarLog::create(const std::string& path, const LogShape& shape, const Base& base,
                            const LogOptions& options) {
  check_shape(shape);
  write_new_file(path, encode(LogHeader{random_id(), shape, base}));
  return open(path, shape, {base, {}}, options);
}

ScalarLog ScalarLog::open(const std::string& path, const LogShape& shape, const ArenaBase& arena,
                          const LogOptions& options) {
  LogFile file(path, options.access, options.busy_wait);
  LogReading reading = read_log(file);
  const LogShape& found = reading.history.header().shape;
  SLUICEWAY_CHECK(found == shape, "scalar log: ", path, " has ", to_text(found), "; expected ",
                  to_text(shape));
  ScalarLog log(std::move(file), std::move(reading), options);
  log.use_base(arena);
  // Who only reads may do so beside a writer, whose last entry is not whole yet.
  if (log.lost() && options.access == Access::kReadWrite) warn(loss_of(log));
  return log;
}

ScalarLog::~ScalarLog() {
  if (file_ == nullptr || options_.access == Access::kRead || !failure_.empty()) return;
  try {
    if (synced_entries_ < history().entries()) sync();
  } catch (const std::exception& error) {
    warn(concat("scalar log: ", file_->path(),
                " was closed, but could not be synced: ", error.what()));
  }
}

void ScalarLog::use_base(const ArenaBase& arena) {
  const LogHistory& then = history();
  if (!then.has_base(arena.base)) {
    const bool ours = arena.made_with == id() &&
                      arena.base.generation > then.greatest_generation() &&
                      arena.base.step >= then.first_step();
    if (!ours) {
      const auto left = then.base_anywhere(arena.base.hash);
      throw_invalid_argument(concat(
          "scalar log: ", file_->path(), " is of base ", to_text(then.bases().back()),
          ", expected ", to_text(arena.base),
          left ? concat("; that hash is known as ", to_text(*left), ", on this line or another")
               : std::string("; give the weights or the log that belong together")));
    }
    const BaseEntry entry{arena.base};
    reading_.history.apply(entry);
    owed_ = entry;
  }
  set_base(arena.base);
}

void ScalarLog::set_base(const Base& base) {
  gammas_ = gammas(history(), base, next_step());
  base_ = base;
}

void ScalarLog::check_writable() const {
  SLUICEWAY_CHECK(options_.access == Access::kReadWrite, "scalar log: ", file_->path(),
                  " was opened for reading; open it for writing");
  if (failure_.empty()) return;
  throw IoError(concat("scalar log: ", file_->path(), " may have lost entries that were written; ",
                       "open it again (", failure_, ")"),
                EIO, file_->path(), static_cast<std::int64_t>(end_));
}

void ScalarLog::append(const StepScalars& scalars) {
  check_writable();
  UpdateEntry update{scalars.step, scalars.non_finite, {}, {}, {}};
  update.seeds.assign(scalars.seeds.begin(), scalars.seeds.end());
  update.g.assign(scalars.g.begin(), scalars.g.end());
  for (const StepRate& rate : scalars.rates) {
    update.rates.push_back({rate.lr, decay_factor(rate.lr, rate.weight_decay)});
  }
  history().check(update);
  std::vector<double> after = gammas_;
  for (std::size_t i = 0; i < after.size(); ++i) {
    after[i] *= update.rates[i].decay;
    (void)gamma_as_float(after[i]);
    for (const float g : update.g) {
      (void)update_scale(update.rates[i].lr, g, history().header().shape.directions, after[i]);
    }
  }
  write(update);
  gammas_ = std::move(after);
  if (std::chrono::steady_clock::now() - last_sync_ >= options_.sync_interval) sync();
}

void ScalarLog::write(const LogEntry& entry) {
  check_writable();
  history().check(entry);
  if (owed_) put(*owed_);
  owed_.reset();
  put(entry);
  try {
    reading_.history.apply(entry);
  } catch (...) {  // No memory: the entry is taken back, at the latest before the next one.
    end_ -= entry_bytes(history().header().shape);
    has_tail_ = true;
    throw;
  }
}

void ScalarLog::put(const LogEntry& entry) {
  const std::size_t size = entry_bytes(history().header().shape);
  const std::vector<std::byte> bytes =
      encode(entry, history().header(), (end_ - kLogHeaderBytes) / size);
  cut_tail();
  has_tail_ = true;
  file_->write(bytes, end_);
  has_tail_ = false;
  end_ += size;
}

// Of what was read and did not hold, or of a write that failed.
void ScalarLog::cut_tail() {
  if (!has_tail_) return;
  if (lost() && lost()->offset == end_ && lost()->entries > 0) {
    const std::vector<std::byte> tail = file_->read(end_, lost()->bytes);
    try {
      write_new_file(concat(file_->path(), ".lost.", to_hex(checksum64(tail))), tail);
    } catch (const IoError& error) {
      if (error.error_number() != EEXIST) throw;  // Else these very bytes were kept before.
    }
  }
  file_->truncate(end_);
  has_tail_ = false;
}

void ScalarLog::sync() {
  check_writable();
  if (owed_) put(*owed_);
  owed_.reset();
  try {
    file_->sync();
  } catch (const IoError& error) {
    failure_ = error.what();
    throw;
  }
  synced_entries_ = history().entries();
  last_sync_ = std::chrono::steady_clock::now();
}

void ScalarLog::rollback(std::uint64_t step) {
  check_writable();
  SLUICEWAY_CHECK(step >= base_.step && step <= next_step(), "rollback: step is ", step,
                  ", expected ", base_.step, ", the step of the base in use, to ", next_step());
  if (step == next_step()) return;
  write(ReturnEntry{step, history().entries()});
  set_base(base_);
  sync();
}

void ScalarLog::restore(std::uint64_t entries) {
  check_writable();
  const ReturnEntry entry{history().next_step_after(entries), entries};
  LogHistory then = history();
  then.apply(entry);
  SLUICEWAY_CHECK(then.has_base(base_), "restore: the line of ", entries,
                  " entries does not have the base in use, ", to_text(base_),
                  "; open the log with an older arena, or branch from that line");
  write(entry);
  set_base(base_);
  sync();
}

void ScalarLog::branch(std::uint64_t step, const std::string& path) const {
  const LogHistory& from = history();
  SLUICEWAY_CHECK(step >= from.first_step() && step <= from.next_step(), "branch: step is ", step,
                  ", expected ", from.first_step(), " to ", from.next_step());
  const std::vector<Base> bases = from.bases();
  const LogHeader header{random_id(), from.header().shape, bases.front()};
  std::vector<std::byte> bytes = encode(header);
  std::uint64_t number = 0;
  const auto add = [&](const LogEntry& entry) {
    const std::vector<std::byte> more = encode(entry, header, number++);
    bytes.insert(bytes.end(), more.begin(), more.end());
  };
  for (std::uint64_t s = from.first_step();; ++s) {
    for (std::size_t i = 1; i < bases.size(); ++i) {
      if (bases[i].step == s) add(BaseEntry{bases[i]});
    }
    if (s == step) break;
    const LoggedStep update = from.update(s);
    add(UpdateEntry{s,
                    update.non_finite,
                    {update.seeds.begin(), update.seeds.end()},
                    {update.g.begin(), update.g.end()},
                    {update.rates.begin(), update.rates.end()}});
  }
  write_new_file(path, bytes);
}

void ScalarLog::announce(const Base& base) {
  check_writable();
  SLUICEWAY_CHECK(base.step >= base_.step && base.step <= next_step(), "announce: base of step ",
                  base.step, ", expected ", base_.step, " to ", next_step());
  SLUICEWAY_CHECK(base.generation > base_.generation, "announce: base of generation ",
                  base.generation, ", expected above ", base_.generation,
                  ", the generation of the base in use");
  write(BaseEntry{base});
  sync();
}

void ScalarLog::adopt(const Base& base) {
  SLUICEWAY_CHECK(history().has_base(base), "adopt: base ", to_text(base),
                  " is not on the log's line; announce it first");
  set_base(base);
}

Replay ScalarLog::pending(std::uint32_t group, std::uint64_t from, std::uint64_t to) const {
  return replay(history(), base_, group, from, to);
}

}  // namespace sluiceway
