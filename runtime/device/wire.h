// A wire of fixed rate in real time: a WireSchedule on the monotonic clock, and the sleeps it
// requires.
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

  // Asks for a slot now. Takes no time on the wire at rate 0.
  WireSchedule::Slot take(std::size_t bytes);

  // Sleeps without spinning. Returns false if the time is past.
  static bool sleep_until_due(const WireSchedule::Slot& slot) noexcept;

  // Reports that the thread that slept until the due time has woken.
  void woke(const WireSchedule::Slot& slot);

 private:
  double gbps_, latency_us_;
  WireSchedule schedule_;
};

}  // namespace sluiceway
