#include "runtime/device/wire.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>

namespace sluiceway {
namespace {

constexpr std::int64_t kNsPerS = 1'000'000'000;
constexpr double kMostNs = 1e15;  // Eleven and a half days; no sum of due times overflows.

std::int64_t monotonic_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerS + now.tv_nsec;
}

}  // namespace

WireSchedule::Slot Wire::take(std::size_t bytes) {
  const double wire_ns =
      gbps_ > 0 ? std::min(static_cast<double>(bytes) / (gbps_ * 1e9) * 1e9, kMostNs) : 0;
  return schedule_.take(monotonic_ns(), std::llround(wire_ns), std::llround(latency_us_ * 1e3));
}

bool Wire::sleep_until_due(const WireSchedule::Slot& slot) noexcept {
  if (monotonic_ns() >= slot.due_ns) return false;
  const timespec due{slot.due_ns / kNsPerS, slot.due_ns % kNsPerS};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, nullptr) == EINTR) {
  }
  return true;
}

void Wire::woke(const WireSchedule::Slot& slot) { schedule_.woke(slot, monotonic_ns()); }

}  // namespace sluiceway
