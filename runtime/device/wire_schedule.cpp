#include "runtime/device/wire_schedule.h"

#include <algorithm>
#include <utility>

namespace sluiceway {

WireSchedule::Slot WireSchedule::take(std::int64_t now_ns, std::int64_t wire_ns,
                                      std::int64_t latency_ns) {
  const std::lock_guard lock(mutex_);
  const std::int64_t asked_ns = now_ns - std::exchange(overslept_ns_, 0);
  off_wire_ns_ = std::max(off_wire_ns_, asked_ns) + wire_ns;
  return {off_wire_ns_, off_wire_ns_ + latency_ns};
}

void WireSchedule::woke(const Slot& slot, std::int64_t now_ns) {
  const std::lock_guard lock(mutex_);
  // If another copy follows, no time was lost: it started when this one left the wire.
  if (off_wire_ns_ != slot.off_wire_ns) return;
  overslept_ns_ = std::min(std::max<std::int64_t>(now_ns - slot.due_ns, 0), kMostOversleptNs);
}

}  // namespace sluiceway
