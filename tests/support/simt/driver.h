// The driver's lock, the calls that keep it until all streams are idle, and waits that cannot end.
//
// Every call that enqueues work takes the lock briefly. A call that allocates, frees or page-locks
// memory, makes or destroys a stream, destroys an event or loads code (loading.h) keeps the lock
// until every stream of both devices is idle. A real driver waits this way in some cases, for one
// device; this one always does, and for both, which is the worst case for a caller. A call that
// waits for an event or a stream releases the lock first.
//
// A call that keeps the lock never returns if a stream waits for the host and the thread that
// should act needs the driver too. The machine cannot know what that thread will do, so it reports
// the state itself: some stream with work waits for the host, no stream with work can go on, and no
// task ends in kLooks successive looks. This gives no false alarm:
//
//   - No stream of the product waits for the host, so the product never gets into that state. A
//     test that creates it with simt::Hold or wait_for_word() does so on purpose.
//   - A slow machine does not create the state. "Can go on" is read from the condition that the
//     stream waits for, not from what its thread has noticed, and a running kernel can go on
//     however long it takes. A look is a turn that the system gives to this thread, so a busy
//     machine has fewer looks a second.
//
// If the thread that holds the device (simt::Hold) waits in the driver itself, the wait cannot end
// whatever others do, and one look is enough.
//
// Thread safety: every call from any thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>

namespace sluiceway::simt {

// While one exists, the calling thread has the driver's lock. Turns do not nest.
class DriverTurn {
 public:
  explicit DriverTurn(std::string call);
  DriverTurn(const DriverTurn&) = delete;
  DriverTurn& operator=(const DriverTurn&) = delete;
  ~DriverTurn();

  // Reports a wait that cannot end, which makes the device fail, and then returns.
  void wait_until_idle() const;

 private:
  std::string call_;
};

// Waits in `call`, without the driver's lock, until `is_over`; `changed` is notified of changes. If
// the calling thread holds the device and so blocks what it waits for, that is a finding. `is_over`
// must not become false again.
void wait_on_host(const char* call, const std::string& awaited, std::unique_lock<std::mutex>& lock,
                  std::condition_variable& changed, const std::function<bool()>& is_over);

}  // namespace sluiceway::simt
