#include "runtime/trace/trace.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
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

// Perfetto treats thread 0 as the machine's idle thread, so rows start at 1 in the file.
int thread_id(Trace::Row row) { return row + 1; }

struct Range {
  std::uint32_t name;
  Trace::Row row;
  double begin_us;
  double end_us;
  std::int64_t bytes;
};

struct Sample {
  std::uint32_t name;
  double at_us;
  double value;
};

Json metadata(const char* what, int thread, Json args) {
  return {{"name", what}, {"ph", "M"}, {"pid", kProcessId}, {"tid", thread}, {"args", args}};
}

Json to_json(const Range& range, const std::string& name) {
  Json event = {{"name", name},         {"ph", "X"},
                {"pid", kProcessId},    {"tid", thread_id(range.row)},
                {"ts", range.begin_us}, {"dur", range.end_us - range.begin_us}};
  if (range.bytes >= 0) event["args"] = {{"bytes", range.bytes}};
  return event;
}

Json to_json(const Sample& sample, const std::string& name) {
  return {{"name", name},
          {"ph", "C"},
          {"pid", kProcessId},
          {"ts", sample.at_us},
          {"args", {{"value", sample.value}}}};
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

}  // namespace

double now_us() noexcept {
  using Clock = std::chrono::steady_clock;
  static const Clock::time_point start = Clock::now();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Trace::State {
  struct Content {
    std::vector<std::string> rows;
    // Position among the names of the file.
    std::map<std::string, std::uint32_t, std::less<>> names;
    // Grows without moving its elements, so there is no pause under the lock.
    std::deque<Range> ranges;
    std::deque<Sample> samples;
    std::size_t dropped = 0;
  };

  explicit State(std::size_t max) : max_events(max) {}

  // A trace must not fail the run that it watches, so an event without memory counts as dropped.
  template <typename Event>
  void add(std::deque<Event> Content::*events, std::string_view name, Event event) noexcept {
    const std::lock_guard lock(mutex);
    if ((content.*events).size() >= max_events) {
      ++content.dropped;
      return;
    }
    try {
      event.name = intern(name);
      (content.*events).push_back(event);
    } catch (const std::bad_alloc&) {
      ++content.dropped;
    }
  }

  std::uint32_t intern(std::string_view name) {
    const auto found = content.names.find(name);
    if (found != content.names.end()) return found->second;
    const auto place = static_cast<std::uint32_t>(content.names.size());
    content.names.emplace(name, place);
    return place;
  }

  const std::size_t max_events;  // Limit for each kind.
  mutable std::mutex mutex;
  Content content;
};

Trace::Trace(std::size_t max_ranges) : state_(std::make_unique<State>(max_ranges)) {
  // Names are numbered with 32 bits, and events of two kinds bring at most one name each.
  SLUICEWAY_CHECK(max_ranges <= std::numeric_limits<std::uint32_t>::max() / 2,
                  "trace: ", max_ranges, " ranges, expected at most ",
                  std::numeric_limits<std::uint32_t>::max() / 2);
}

Trace::~Trace() = default;

Trace::Row Trace::add_row(std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string>& rows = state_->content.rows;
  const auto found = std::find(rows.begin(), rows.end(), name);
  if (found != rows.end()) return static_cast<Row>(found - rows.begin());
  rows.emplace_back(name);
  return static_cast<Row>(rows.size() - 1);
}

void Trace::add_range(Row row, std::string_view name, double begin_us, double end_us,
                      std::int64_t bytes) {
  if (!enabled()) return;
  state_->add(&State::Content::ranges, name, Range{0, row, begin_us, end_us, bytes});
}

void Trace::add_counter(std::string_view name, double at_us, double value) {
  if (!enabled()) return;
  state_->add(&State::Content::samples, name, Sample{0, at_us, value});
}

void Trace::write_json(const std::string& path) const {
  State::Content content;
  {
    const std::lock_guard lock(state_->mutex);
    content = state_->content;
  }
  std::vector<std::string> names(content.names.size());
  for (const auto& [name, place] : content.names) names[place] = name;
  std::stable_sort(content.ranges.begin(), content.ranges.end(),
                   [](const Range& a, const Range& b) { return a.begin_us < b.begin_us; });
  std::stable_sort(content.samples.begin(), content.samples.end(),
                   [](const Sample& a, const Sample& b) { return a.at_us < b.at_us; });

  EventFile file(path);
  file.write(metadata("process_name", 0, {{"name", "sluiceway"}}));
  for (std::size_t i = 0; i < content.rows.size(); ++i) {
    const int thread = thread_id(static_cast<Row>(i));
    file.write(metadata("thread_name", thread, {{"name", content.rows[i]}}));
    file.write(metadata("thread_sort_index", thread, {{"sort_index", thread}}));
  }
  for (const Range& range : content.ranges) file.write(to_json(range, names[range.name]));
  for (const Sample& sample : content.samples) file.write(to_json(sample, names[sample.name]));
  file.finish({{"ranges", content.ranges.size()}, {"dropped", content.dropped}});
}

std::size_t Trace::range_count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->content.ranges.size();
}

std::size_t Trace::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->content.dropped;
}

}  // namespace sluiceway
