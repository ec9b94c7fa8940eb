// When copies leave a wire of fixed rate: arithmetic on times, without a clock.
//
// The wire carries one copy after another, so simultaneous copies share its rate. A copy starts
// when the previous one has left the wire. On a free wire it starts when requested, minus the time
// that the previous copy overslept: so a chain of copies takes the sum of its times, however late
// the timer wakes each of them, while an idle wire saves up nothing.
//
// Thread safety: every call from any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace sluiceway {

class WireSchedule {
 public:
  // A copy that oversleeps by more was delayed by something other than its timer; the next copy
  // does not make up for that.
  static constexpr std::int64_t kMostOversleptNs = 1'000'000;

  struct Slot {
    std::int64_t off_wire_ns;  // When the last byte has left the wire.
    std::int64_t due_ns;       // When it has arrived: a latency later.
  };

  // Schedules a copy requested at `now_ns` that occupies the wire for `wire_ns`.
  Slot take(std::int64_t now_ns, std::int64_t wire_ns, std::int64_t latency_ns);

  // Reports that the copy slept until its due time and woke at `now_ns`.
  void woke(const Slot& slot, std::int64_t now_ns);

 private:
  std::mutex mutex_;
  std::int64_t off_wire_ns_ = 0;
  std::int64_t overslept_ns_ = 0;
};

}  // namespace sluiceway
