// The half of Executor::State that faces the streams: hands out hops and receives their
// completions.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "runtime/schedule/executor_state.h"
#include "runtime/schedule/lane_error.h"
#include "runtime/trace/trace.h"

namespace sluiceway {
namespace {

// The two halves of a hop that ends outside its stream: the stream and its HopDone. Each writes its
// own fields; the later one sees the other's through the counter's release and acquire.
struct Halves {
  bool second_comes() noexcept { return left.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // The error of start() wins: a token that it dropped while throwing says less.
  Completion both() const {
    return {stream.begin_us, std::max(stream.end_us, outside_us),
            stream.error ? stream.error : outside_error};
  }

  std::atomic<int> left = 2;
  Completion stream;
  double outside_us = 0;
  std::exception_ptr outside_error;
};

// Returns nothing if the stream has failed; the hop's own completion reports that.
std::optional<Event> record(Stream& stream) noexcept {
  try {
    return stream.record();
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace

double steady_s() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Executor::State::dispatch(Lock& lock) {
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    LaneState& state = lanes[lane];
    if (state.dispatching) continue;
    state.dispatching = true;
    while (!error && state.running < config.lanes[lane].depth && !state.ready.empty()) {
      start_next(lane, lock);
    }
    state.dispatching = false;
  }
  if (idle()) changed.notify_all();
}

void Executor::State::start_next(std::size_t lane, Lock& lock) {
  LaneState& state = lanes[lane];
  std::pop_heap(state.ready.begin(), state.ready.end(), goes_later);
  Item* item = state.ready.back();
  state.ready.pop_back();
  item->place = Place::kRunning;
  ++item->started;
  if (state.running++ == 0) state.busy_since_s = limit_s(lock);
  note_device(*item);
  const std::size_t hop = item->hop;
  const Event after = std::exchange(item->after, Event());
  const bool on_device = item->handed_out = may_go_ahead(*item) || ends_on_device(*item);
  lock.unlock();
  try {
    hand_over(item, hop, after);
  } catch (...) {  // The stream did not take the task.
    const double now = now_us();
    complete(item, hop, {.begin_us = now, .end_us = now, .error = std::current_exception()});
  }
  if (!on_device) return lock.lock();  // The item may be gone.
  const std::optional<Event> reached = record(*config.lanes[lane].stream);
  lock.lock();
  move_on(lock, item, reached);
}

void Executor::State::hand_over(Item* item, std::size_t hop, const Event& after) {
  const Hop& next = item->payload.hops[hop];
  Stream& stream = *config.lanes[static_cast<std::size_t>(next.lane)].stream;
  if (after.state() != nullptr) stream.wait(after);
  if (next.run) {
    stream.enqueue([item, hop](StreamRef ref) { item->payload.hops[hop].run(ref); },
                   [item, hop, self = shared_from_this()](const Completion& completion) {
                     self->complete(item, hop, completion);
                   });
    return;
  }
  const auto halves = std::make_shared<Halves>();
  const auto finish_half = [item, hop, halves, self = shared_from_this()] {
    if (halves->second_comes()) self->complete(item, hop, halves->both());
  };
  const HopDone done([halves, finish_half](std::exception_ptr failed) {
    halves->outside_us = now_us();
    halves->outside_error = std::move(failed);
    finish_half();
  });
  stream.enqueue([item, hop, done](StreamRef ref) { item->payload.hops[hop].start(ref, done); },
                 [halves, finish_half](const Completion& completion) {
                   halves->stream = completion;
                   finish_half();
                 });
}

// ---- Several hops of one device in flight -------------------------------------------------------

const Stream& Executor::State::stream_of(const Item& item, std::size_t hop) const noexcept {
  return *config.lanes[static_cast<std::size_t>(item.payload.hops[hop].lane)].stream;
}

bool Executor::State::may_go_ahead(const Item& item) const noexcept {
  const std::vector<Hop>& hops = item.payload.hops;
  const std::size_t next = item.hop + 1;
  if (next >= hops.size() || !hops[item.hop].run || !hops[next].run) return false;
  return stream_of(item, next).device_waits_for(stream_of(item, item.hop)) &&
         !must_park(item, next);
}

bool Executor::State::ends_on_device(const Item& item) const noexcept {
  const Stream& stream = stream_of(item, item.hop);
  return item.hop + 1 == item.payload.hops.size() && item.payload.hops[item.hop].run &&
         stream.device_waits_for(stream);
}

void Executor::State::move_on(Lock& lock, Item* item, const std::optional<Event>& reached) {
  Items gone;
  item->handed_out = false;
  if (!reached || !item->in_flight() || error || item->recalled_by != 0) {
    settle(lock, item, gone);
  } else if (item->hop + 1 == item->payload.hops.size()) {
    note_sent(lock, item, *reached);
  } else {
    item->after = *reached;
    advance(lock, item, gone);
  }
  destroy(lock, gone);
}

// Only one thread at a time hands work to a lane's stream, so the later of two events comes after
// the other.
void Executor::State::note_sent(Lock&, Item* item, const Event& end) {
  const LaneId lane = item->payload.hops[item->hop].lane;
  Key& key = key_of(*item);
  const auto known = std::find(key.ends_in.begin(), key.ends_in.end(), lane);
  if (known == key.ends_in.end()) {
    key.ends_in.push_back(lane);
    key.ends.push_back(end);
  } else {
    key.ends[static_cast<std::size_t>(known - key.ends_in.begin())] = end;
  }
  lanes[static_cast<std::size_t>(lane)].last_end = end;
  item->is_sent = true;
  if (held_back(*item)) return;
  --key.unsent;
  --unsent;
  changed.notify_all();
}

void Executor::State::complete(Item* item, std::size_t hop, const Completion& completion) noexcept {
  Hop& done = item->payload.hops[hop];
  const auto lane = static_cast<std::size_t>(done.lane);
  const LaneConfig& in = config.lanes[lane];
  std::exception_ptr named;
  bool is_first = false;
  if (completion.error) {
    named = name_error(completion.error, in.name, item->payload.name);
    // Other threads may wait for the hop's captured objects to go: they then find the failure
    // recorded.
    const Lock lock(mutex);
    is_first = !error;
    if (is_first) error = named;
  }
  done.run = nullptr;  // Destroys captured objects before the payload moves on.
  done.start = nullptr;
  if (config.trace != nullptr && config.trace->enabled()) {
    config.trace->add_range(in.trace_row, item->payload.name, completion.begin_us,
                            completion.end_us, static_cast<std::int64_t>(done.bytes));
  }

  Items gone;
  Lock lock(mutex);
  item->seconds[hop] = (completion.end_us - completion.begin_us) * 1e-6;
  LaneState& state = lanes[lane];
  --state.running;
  state.busy_since_s = limit_s(lock);
  state.longest_s = std::max(state.longest_s, item->seconds[hop]);
  use.seconds[lane] += item->seconds[hop];
  ++use.payloads[lane];
  ++item->finished;
  note_device(*item);
  if (is_first) {
    fail(lock, std::move(named), gone);
  } else {
    settle(lock, item, gone);
  }
  destroy(lock, gone);  // Frees memory before new work starts.
  dispatch(lock);
}

// Decides what happens to an item when none of its hops is in flight any more.
void Executor::State::settle(Lock& lock, Item* item, Items& gone) {
  if (item->in_flight()) return;
  if (error) {
    take_out(lock, item, gone);
  } else if (item->recalled_by != 0) {
    changed.notify_all();  // recall() removes it.
  } else if (item->place == Place::kRunning) {
    advance(lock, item, gone);
  }
}

// ---- Times --------------------------------------------------------------------------------------

void Executor::State::note_times(const Item& item) {
  Key& key = key_of(item);
  if (item.step < key.step) return;  // A later step has overtaken this one.
  if (item.step > key.step) std::fill(key.gathered.begin(), key.gathered.end(), 0.0);
  key.step = item.step;
  for (std::size_t hop = 0; hop < item.seconds.size(); ++hop) {
    key.gathered[static_cast<std::size_t>(item.payload.hops[hop].lane)] += item.seconds[hop];
  }
  if (key.moving == 1) key.last = key.gathered;  // This is the last one that moves.
}

// The device works on the item's hop in the device lane from when all earlier hops have finished.
void Executor::State::note_device(Item& item) noexcept {
  const bool busy = item.device_hop < item.started && item.finished == item.device_hop;
  if (busy == item.on_device) return;
  item.on_device = busy;
  if (busy) {
    if (on_device_++ == 0) device_began_s_ = steady_s();
  } else if (--on_device_ == 0) {
    device_before_s_ += steady_s() - device_began_s_;
  }
}

double Executor::State::device_busy_s(double now_s) const noexcept {
  return device_before_s_ + (on_device_ > 0 ? now_s - device_began_s_ : 0);
}

}  // namespace sluiceway
