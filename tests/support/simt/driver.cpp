#include "tests/support/simt/driver.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "kernels/base/check.h"
#include "tests/support/simt/board.h"
#include "tests/support/simt/calls.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/gate.h"

namespace sluiceway::simt {
namespace {

constexpr std::chrono::milliseconds kLook{20};
constexpr int kLooks = 40;

struct Lock {
  std::mutex mutex;
  std::condition_variable changed;
  bool taken = false;
};

Lock& driver_lock() {
  static Lock* const one = new Lock;
  return *one;
}

void report_deadlock() {
  report(cudaErrorLaunchFailure,
         concat("simt: a wait that cannot end: ", describe_waits(),
                "; let no stream wait for the host, and allocate and load before you hold the "
                "device"));
}

}  // namespace

DriverTurn::DriverTurn(std::string call) : call_(std::move(call)) {
  count(kLockTaken);
  Lock& lock = driver_lock();
  std::unique_lock held(lock.mutex);
  if (lock.taken) {
    const HostWait waits(HostWait::Where::kForLock, concat("waits for the driver in ", call_));
    lock.changed.wait(held, [&lock] { return !lock.taken; });
  }
  lock.taken = true;
}

DriverTurn::~DriverTurn() {
  const std::lock_guard held(driver_lock().mutex);
  driver_lock().taken = false;
  driver_lock().changed.notify_one();
}

void DriverTurn::wait_until_idle() const {
  if (wait_until_all_are_idle_for(std::chrono::milliseconds(0))) return;
  count(kIdleWait);
  const HostWait waits(HostWait::Where::kWithLock,
                       concat("holds the driver in ", call_, ", which waits for idle streams"));
  std::uint64_t finished = 0;
  int looks = 0;
  while (!wait_until_all_are_idle_for(kLook)) {
    const Look now = look();
    if (!now.stuck || std::exchange(finished, now.finished) != now.finished) {
      looks = 0;
      continue;
    }
    if (device_error() != cudaSuccess) return;  // A finding says why.
    const bool is_certain = now.waits_for_hold && now.hold_never_ends;
    if (is_certain || ++looks == kLooks) report_deadlock();
  }
}

void wait_on_host(const char* call, const std::string& awaited, std::unique_lock<std::mutex>& lock,
                  std::condition_variable& changed, const std::function<bool()>& is_over) {
  if (is_over()) return;
  lock.unlock();  // The board locks its own mutex and may then lock this one.
  {
    const HostWait waits(HostWait::Where::kForStream, concat("waits for ", awaited, " in ", call));
    const bool holds = holds_device(gettid());
    lock.lock();
    while (!changed.wait_for(lock, kLook, is_over)) {
      if (!holds) continue;
      lock.unlock();
      const Look now = look();
      if (now.stuck && now.waits_for_hold && !now.waits_for_host) report_deadlock();
      lock.lock();
    }
    lock.unlock();
  }
  lock.lock();
}

}  // namespace sluiceway::simt
