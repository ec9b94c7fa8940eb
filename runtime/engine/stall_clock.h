// Measures how long a CUDA device's computing stream stood still for a link or the host: the stall.
//
//   computing stream   ... forward |begin  waits  end| forward ...
//   device's lane            |begin apply end|   |begin apply end|
//
//   stall = sum over waits of (end - begin, minus the time that the device's lane worked meanwhile)
//
// Both kinds of wait count, by the time they cost the device: waits of the stream itself, and waits
// that block the thread that feeds it. The second kind costs nothing while the stream has other
// work left.
//
// All times are the device's own, between marks in the streams (time_mark.h), and nobody waits to
// read them: a wait is counted once the device has passed its end, which is checked from time to
// time. The waits of a forward lie between two steps. take() after a step includes the forward
// before it only as far as the device has come; the next take() returns the rest.
//
// Cost: two marks for each wait that is not over when it begins, and two for each hop of the
//       device's lane; about a microsecond each for the thread and for the stream. Marks are reused
//       once read. At most four exist for each weight and step that the device is behind, and a
//       step like the one before makes none.
//
// Thread safety: every call from any thread; a training and an evaluating thread may wait at the
//                same time. No lock is held while a mark is recorded, since the thread may have to
//                wait until its stream has room.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/stream_ref.h"
#include "runtime/device/time_mark.h"

namespace sluiceway {

class StallClock {
 public:
  using MakeMark = std::function<std::unique_ptr<TimeMark>()>;

  explicit StallClock(MakeMark make_mark) : make_mark_(std::move(make_mark)) {}

  // Calls `wait`, which makes `compute` or the calling thread wait; if it throws, it does not
  // count.
  void time_wait(StreamRef compute, const std::function<void()>& wait);

  // Calls `work`, which gives the device's lane work; while that runs, a wait is no stall.
  void time_work(StreamRef lane, const std::function<void()>& work);

  double take();  // Seconds of waits passed since the last call. Does not block.

 private:
  using Mark = std::unique_ptr<TimeMark>;
  struct Stretch {
    Mark begin, end;  // end is null until it is enqueued.
  };
  using Stretches = std::list<Stretch>;  // A stretch keeps its address until it is popped.

  void time(Stretches& in, StreamRef stream, const std::function<void()>& body);
  Mark record(StreamRef stream);
  // With the mutex held:
  void settle();
  void forget_works();
  double worked(const Stretch& wait, double waited_s) const;
  void pop(Stretches& from);  // Frees its marks.

  const MakeMark make_mark_;
  std::mutex mutex_;
  Stretches waits_, works_;  // Not counted yet; in stream order.
  std::vector<Mark> free_;
  double stall_s_ = 0;
};

}  // namespace sluiceway
