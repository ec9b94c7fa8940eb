// Named ranges and counters of a run, written as Chrome/Perfetto JSON with one row a lane.
//
// Off by default: enabled() is one relaxed load, and a disabled range reads no clock. When on,
// ranges go into a buffer. After spill_beside() they go on from there into an unnamed file, and
// take 64 KiB of memory, however many there are. Ranges beyond `max_ranges`, and ranges that a disk
// has no room for, are counted, and the file has the count.
//
// Thread safety: every call from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sluiceway {

// Microseconds of the steady clock since the process first asked.
double now_us() noexcept;

class Trace {
 public:
  using Row = int;

  explicit Trace(std::size_t max_ranges = std::size_t{1} << 20);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  Row add_row(std::string_view name);  // Returns the same row for the same name.
  // Keeps events on the disk of `path`, to which write_json() will write, from now on. If the disk
  // accepts none, keeps the first 64 KiB of them.
  void spill_beside(const std::string& path);

  void enable(bool on) noexcept { enabled_.store(on, std::memory_order_relaxed); }
  bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }

  // Does nothing while the trace is off. `bytes` < 0: the range has none.
  void add_range(Row row, std::string_view name, double begin_us, double end_us,
                 std::int64_t bytes = -1);
  void add_counter(std::string_view name, double at_us, double value);

  // Writes Chrome trace format; the events in each 64 KiB are sorted by start. Throws IoError with
  // path and errno.
  void write_json(const std::string& path) const;
  std::size_t range_count() const;
  std::size_t dropped() const;

 private:
  struct State;
  std::atomic<bool> enabled_{false};
  std::unique_ptr<State> state_;
};

// Records [construction, destruction) on a row, if the trace is on at construction.
class TraceRange {
 public:
  TraceRange(Trace* trace, Trace::Row row, std::string_view name, std::int64_t bytes = -1)
      : trace_(trace != nullptr && trace->enabled() ? trace : nullptr),
        row_(row),
        name_(name),
        bytes_(bytes),
        begin_us_(trace_ != nullptr ? now_us() : 0) {}
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
  ~TraceRange() {
    if (trace_ != nullptr) trace_->add_range(row_, name_, begin_us_, now_us(), bytes_);
  }

 private:
  Trace* trace_;
  Trace::Row row_;
  std::string_view name_;
  std::int64_t bytes_;
  double begin_us_;
};

}  // namespace sluiceway
