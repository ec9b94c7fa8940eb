// How long a CUDA device's computing stream stood still for a link or the host: the stall.
//
//   computing stream   ... forward |begin  waits  end| forward ...
//   device's lane            |begin apply end|   |begin apply end|
//
//   stall = sum over waits of (end - begin, less what the device's lane worked in between)
//
// Both kinds of wait count, each by what it cost the device: one that the stream does by itself,
// and one in which the thread that feeds the stream is blocked. The second costs nothing while the
// stream has other work left.
//
// All times are the device's own, between marks in the streams (time_mark.h), and nobody waits to
// read them: a wait is counted when the device has passed its end, and asked for from time to time.
// As a forward's waits lie between two steps, take() after a step has those of the forward before
// it only if the device has come that far, and the rest is in the next one.
//
// Cost: two marks for each wait that is not over when it begins, and two for each hop of the
//       device's lane: a microsecond or so each for the thread and for the stream. Marks are reused
//       when they have been read: there are never more than four for each weight and step that the
//       device is behind, and a step that is like the one before makes none.
//
// Thread safety: every call from any thread; a thread that trains and one that evaluates may wait
// at
//                the same time. No lock is held while a mark is recorded, since the thread may have
//                to wait for room in its stream until the device has gone on.
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

  // Calls `wait`, which lets `compute` or the calling thread wait; one that throws does not count.
  void time_wait(StreamRef compute, const std::function<void()>& wait);

  // Calls `work`, which gives the device's lane something to do: no stall as long as it does it.
  void time_work(StreamRef lane, const std::function<void()>& work);

  double take();  // Seconds of waits that were passed since the last call. Does not block.

 private:
  using Mark = std::unique_ptr<TimeMark>;
  struct Stretch {
    Mark begin, end;  // No end: it has not been enqueued.
  };
  using Stretches = std::list<Stretch>;  // A stretch stays where it is until it is popped.

  void time(Stretches& in, StreamRef stream, const std::function<void()>& body);
  Mark record(StreamRef stream);
  // With the mutex held:
  void settle();
  void forget_works();
  double worked(const Stretch& wait, double waited_s) const;
  void pop(Stretches& from);  // Its marks are free.

  const MakeMark make_mark_;
  std::mutex mutex_;
  Stretches waits_, works_;  // Not counted yet; in the order of their streams.
  std::vector<Mark> free_;
  double stall_s_ = 0;
};

}  // namespace sluiceway
