#include "runtime/trace/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kProcessId = 1;
constexpr std::size_t kRecentBytes = std::size_t{64} << 10;  // In memory, of a trace that spills.

// Perfetto treats thread 0 as the machine's idle thread, so rows start at 1 in the file.
int thread_id(Trace::Row row) { return row + 1; }

// An event as it lies in memory and in the spill file, with its name behind it.
struct Record {
  double begin_us;
  double end_us;       // A counter's value.
  std::int64_t bytes;  // Negative: a range without.
  Trace::Row row;      // kCounter: a counter.
  std::uint32_t name_bytes;
};
constexpr Trace::Row kCounter = -1;

struct Event {
  Record record;
  std::string_view name;
};

Json metadata(const char* what, int thread, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcessId}, {"tid", thread}, {"args", args}};
}

Json to_json(const Event& event) {
  const Record& of = event.record;
  if (of.row == kCounter) {
    return {{"name", event.name},
            {"ph", "C"},
            {"pid", kProcessId},
            {"ts", of.begin_us},
            {"args", {{"value", of.end_us}}}};
  }
  Json range = {{"name", event.name},       {"ph", "X"},         {"pid", kProcessId},
                {"tid", thread_id(of.row)}, {"ts", of.begin_us}, {"dur", of.end_us - of.begin_us}};
  if (of.bytes >= 0) range["args"] = {{"bytes", of.bytes}};
  return range;
}

// Writes the document event by event: a tree of a million events would take a gigabyte.
class EventFile {
 public:
  explicit EventFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {
    if (file_ == nullptr) fail("open");
    put("{\"traceEvents\":[");
  }
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;
  ~EventFile() {
    if (file_ != nullptr) std::fclose(file_);
  }

  void write(const Json& event) {
    put(std::exchange(first_, false) ? "\n" : ",\n");
    put(text(event));
  }

  void finish(const Json& other) {
    put("\n],\"displayTimeUnit\":\"ms\",\"otherData\":" + text(other) + "}\n");
    if (std::fclose(std::exchange(file_, nullptr)) != 0) fail("close");
  }

 private:
  // Names come from models and paths: bytes that are not UTF-8 are replaced, not fatal.
  static std::string text(const Json& value) {
    return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  void put(std::string_view bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) fail("write");
  }
  [[noreturn]] void fail(const char* call) const {
    const int error_number = errno;
    throw IoError(concat("trace: cannot ", call, " ", path_, ": ",
                         std::generic_category().message(error_number)),
                  error_number, path_, 0);
  }

  std::string path_;
  std::FILE* file_;
  bool first_ = true;
};

// Takes whole events from the front of `bytes` and writes them, by begin; returns their size.
std::size_t write_events(EventFile& file, std::string_view bytes) {
  std::vector<Event> events;
  std::size_t at = 0;
  while (bytes.size() - at >= sizeof(Record)) {
    Record record;
    std::memcpy(&record, bytes.data() + at, sizeof record);
    const std::size_t end = at + sizeof record + record.name_bytes;
    if (end > bytes.size()) break;
    events.push_back({record, bytes.substr(at + sizeof record, record.name_bytes)});
    at = end;
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.record.begin_us < b.record.begin_us;
  });
  for (const Event& event : events) file.write(to_json(event));
  return at;
}

// A file without a name beside `path`, which goes with its descriptor; -1: there can be none.
int open_spill(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path() / ".";
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  std::string name = folder / ".trace-XXXXXX";  // Not every file system has such files.
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

}  // namespace

double now_us() noexcept {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point start = Clock::now();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Trace::State {
  explicit State(std::size_t max) : max_events(max) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (spill_fd >= 0) ::close(spill_fd);
  }

  // A trace must not fail the run that it watches, so an event without memory or disk space counts
  // as dropped.
  void add(std::size_t& count, Record record, std::string_view name) noexcept {
    const std::lock_guard lock(mutex);
    const std::size_t size = sizeof record + name.size();
    if (count >= max_events || !has_room(size)) {
      ++dropped;
      return;
    }
    try {
      if (recent.capacity() - recent.size() < size) recent.reserve(2 * (recent.size() + size));
    } catch (const std::bad_alloc&) {
      ++dropped;
      return;
    }
    record.name_bytes = static_cast<std::uint32_t>(name.size());
    recent.append(reinterpret_cast<const char*>(&record), sizeof record);
    recent.append(name);
    ++count;
  }

  // Expects the mutex to be held. What a disk refuses stays in memory, and nothing follows it.
  bool has_room(std::size_t size) noexcept {
    if (!spills || recent.size() + size <= kRecentBytes || recent.empty()) return true;
    for (std::size_t at = 0; at < recent.size() && !is_full;) {
      const auto offset = static_cast<off_t>(spilled_bytes + at);
      const ssize_t wrote = pwrite(spill_fd, recent.data() + at, recent.size() - at, offset);
      if (wrote > 0) at += static_cast<std::size_t>(wrote);
      is_full = wrote == 0 || (wrote < 0 && errno != EINTR);
    }
    if (is_full) return false;
    spilled_bytes += recent.size();
    recent.clear();
    return true;
  }

  const std::size_t max_events;  // Limit for each kind.
  mutable std::mutex mutex;
  std::vector<std::string> rows;
  std::string recent;  // Whole events that are not in the spill file.
  std::size_t ranges = 0, samples = 0, dropped = 0;
  bool spills = false;
  bool is_full = false;  // The spill file.
  int spill_fd = -1;
  std::uint64_t spilled_bytes = 0;
};

Trace::Trace(std::size_t max_ranges) : state_(std::make_unique<State>(max_ranges)) {}

Trace::~Trace() = default;

Trace::Row Trace::add_row(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string>& rows = state_->rows;
  const auto found = std::find(rows.begin(), rows.end(), name);
  if (found != rows.end()) return static_cast<Row>(found - rows.begin());
  rows.emplace_back(name);
  return static_cast<Row>(rows.size() - 1);
}

void Trace::spill_beside(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  if (std::exchange(state_->spills, true)) return;
  state_->spill_fd = open_spill(path);
  state_->recent.reserve(kRecentBytes);
}

void Trace::add_range(Row row, std::string_view name, double begin_us, double end_us,
                      std::int64_t bytes) {
  if (!enabled()) return;
  state_->add(state_->ranges, {begin_us, end_us, bytes, row, 0}, name);
}

void Trace::add_counter(std::string_view name, double at_us, double value) {
  if (!enabled()) return;
  state_->add(state_->samples, {at_us, value, -1, kCounter, 0}, name);
}

void Trace::write_json(const std::string& path) const {
  std::unique_lock lock(state_->mutex);
  const std::vector<std::string> rows = state_->rows;
  const std::string recent = state_->recent;
  const std::uint64_t spilled_bytes = state_->spilled_bytes;
  const Json counts = {{"ranges", state_->ranges}, {"dropped", state_->dropped}};
  lock.unlock();

  EventFile file(path);
  file.write(metadata("process_name", 0, {{"name", "sluiceway"}}));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int thread = thread_id(static_cast<Row>(i));
    file.write(metadata("thread_name", thread, {{"name", rows[i]}}));
    file.write(metadata("thread_sort_index", thread, {{"sort_index", thread}}));
  }
  std::string piece;  // Whole events, and the beginning of one.
  for (std::uint64_t at = 0; at < spilled_bytes;) {
    const std::size_t before = piece.size();
    piece.resize(before + std::min<std::uint64_t>(kRecentBytes, spilled_bytes - at));
    const std::int64_t read = check_syscall(pread(state_->spill_fd, piece.data() + before,
                                                  piece.size() - before, static_cast<off_t>(at)),
                                            "pread", path, static_cast<std::int64_t>(at));
    if (read == 0)
      throw IoError(concat("trace: the events of ", path, " are cut off"), EIO, path, 0);
    piece.resize(before + static_cast<std::size_t>(read));
    at += static_cast<std::uint64_t>(read);
    piece.erase(0, write_events(file, piece));
  }
  write_events(file, recent);
  file.finish(counts);
}

std::size_t Trace::range_count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ranges;
}

std::size_t Trace::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

}  // namespace sluiceway
