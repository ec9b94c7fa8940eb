// A wire of fixed rate in real time: a WireSchedule by the monotonic clock, and the sleeps that it
// asks for.
//
//   seconds(bytes) = latency_us * 1e-6 + bytes / (gbps * 1e9)
//
// Thread safety: every call from any thread.
#pragma once

#include <cstddef>

#include "runtime/device/wire_schedule.h"

namespace sluiceway {

class Wire {
 public:
  Wire(double gbps, double latency_us) noexcept : gbps_(gbps), latency_us_(latency_us) {}

  WireSchedule::Slot take(std::size_t bytes);  // Asked for now. A rate of 0: no time on the wire.

  // The thread sleeps, it does not spin. False: the time is past.
  static bool sleep_until_due(const WireSchedule::Slot& slot) noexcept;

  // Whoever slept until its due time goes on now.
  void woke(const WireSchedule::Slot& slot);

 private:
  double gbps_, latency_us_;
  WireSchedule schedule_;
};

}  // namespace sluiceway
