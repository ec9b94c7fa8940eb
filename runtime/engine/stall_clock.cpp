#include "runtime/engine/stall_clock.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace sluiceway {

void StallClock::time_wait(StreamRef compute, const std::function<void()>& wait) {
  time(waits_, compute, wait);
}

void StallClock::time_work(StreamRef lane, const std::function<void()>& work) {
  time(works_, lane, work);
}

double StallClock::take() {
  const std::lock_guard lock(mutex_);
  settle();
  return std::exchange(stall_s_, 0);
}

void StallClock::time(Stretches& in, StreamRef stream, const std::function<void()>& body) {
  Mark begin = record(stream);
  Stretches::iterator own;
  {
    // Inserts before the body runs, so that other threads that settle meanwhile see that it has
    // begun. A stretch without an end is never popped.
    const std::lock_guard lock(mutex_);
    own = in.insert(in.end(), {std::move(begin), nullptr});
  }
  try {
    body();
    Mark end = record(stream);
    const std::lock_guard lock(mutex_);
    own->end = std::move(end);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    in.erase(own);
    throw;
  }
}

StallClock::Mark StallClock::record(StreamRef stream) {
  Mark mark;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) settle();  // Queries the device, so not for every mark.
    if (!free_.empty()) {
      mark = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (mark == nullptr) mark = make_mark_();
  mark->record(stream);
  return mark;
}

void StallClock::settle() {
  for (forget_works(); !waits_.empty() && waits_.front().end != nullptr; forget_works()) {
    const Stretch& wait = waits_.front();
    const std::optional<double> waited_s = wait.end->seconds_since(*wait.begin);
    if (!waited_s) break;
    stall_s_ += std::max(0.0, *waited_s - worked(wait, *waited_s));
    pop(waits_);
  }
}

// Finished work matters only to a wait that began before, never to a later one.
void StallClock::forget_works() {
  while (!works_.empty() && works_.front().end != nullptr) {
    const Stretch& work = works_.front();
    const TimeMark& since = waits_.empty() ? *work.begin : *waits_.front().begin;
    const std::optional<double> ended_s = work.end->seconds_since(since);
    if (!ended_s || (!waits_.empty() && *ended_s > 0)) break;
    pop(works_);
  }
}

// The wait is over, so a mark that has not been passed yet lies behind it.
double StallClock::worked(const Stretch& wait, double waited_s) const {
  double sum_s = 0;
  for (const Stretch& work : works_) {
    const std::optional<double> begin_s = work.begin->seconds_since(*wait.begin);
    if (!begin_s || *begin_s >= waited_s) break;  // The later work of that lane is later, too.
    std::optional<double> end_s;
    if (work.end != nullptr) end_s = work.end->seconds_since(*wait.begin);
    const double until_s = std::min(end_s.value_or(waited_s), waited_s);
    sum_s += std::max(0.0, until_s - std::max(*begin_s, 0.0));
  }
  return sum_s;
}

void StallClock::pop(Stretches& from) {
  free_.push_back(std::move(from.front().begin));
  free_.push_back(std::move(from.front().end));
  from.pop_front();
}

}  // namespace sluiceway
