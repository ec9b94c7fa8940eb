#include "runtime/engine/stream/weight_ring.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/engine/stream/weight_places.h"

namespace sluiceway {
namespace {

constexpr LanePlan kPlan{.gather_before = std::nullopt, .device_lane = ring_lanes::kCopies};

struct Depths {  // Hops in flight.
  int free = 1, reads = 1, staged = 1, ready = 1;
};

std::vector<LaneSpec> specs_of(const WeightRingOptions& options, const Depths& depths,
                               int copy_lanes) {
  using enum LaneSpec::Runs;
  using enum LinkDirection;
  const int cpu = options.lane_cpu;
  std::vector<LaneSpec> all = {{"free", kOnHost, std::max(1, depths.free), cpu},
                               {"disk", kOnHost, std::max(1, depths.reads), cpu},
                               {"staged", kOnHost, std::max(1, depths.staged), cpu},
                               {"h2d", kOnDevice, 2, cpu, false, kHostToDevice},
                               {"ready", kOnHost, std::max(1, depths.ready), cpu}};
  for (int i = 0; i < copy_lanes; ++i) {
    all.push_back({options.copy_lane + (i == 0 ? std::string() : std::to_string(i)), kOnDevice, 1,
                   options.device_cpu, true});
  }
  if (options.written != nullptr) {
    all.push_back({"down", kOnDevice, 2, cpu, false, kDeviceToHost});
  }
  return all;
}

// Where steps are written into weights a hop may wait for one of a later deadline: that waits in
// the same lane, on no thread, so there all that can be submitted may wait at once.
Depths depths_of(const SlotPlan& plan, int reads, int written_keys) {
  Depths depths{.reads = reads};
  depths.staged += written_keys;
  depths.ready += written_keys;
  depths.free += plan.most_parts;
  depths.staged += plan.most_parts;
  for (const SlotClass& c : plan.classes) {
    depths.free += c.staging;
    depths.staged += c.arrivals + c.staging;
    depths.ready += c.pairs + c.arrivals;
  }
  return depths;
}

std::uint64_t device_room(const WeightRingOptions& options, int copy_lanes) {
  const EngineLanes::Options& lanes = options.lanes;
  const std::uint64_t limit = lanes.limits[static_cast<std::size_t>(Tier::kDevice)];
  std::uint64_t others = lanes.budget ? lanes.budget->used(Tier::kDevice) : 0;
  others += static_cast<std::uint64_t>(copy_lanes) * options.scratch_bytes;
  return limit - std::min(limit, lanes.resident_bytes + others);
}

}  // namespace

struct WeightRing::Entry {
  bool is_read() const noexcept { return staging.data != nullptr; }

  int use = 0;
  int next = 0;                          // Round of its first turn without a pair.
  std::shared_ptr<const RingPass> pass;  // Set when the pass begins, before a hop may read it.
  bool lacks_arrival = false;            // It still needs a slot.
  Slot staging, arrival;                 // None if it does not come that way.
  // Ends of its hops; the entry shares `through` until the last hop is submitted.
  AtEndPtr read = std::make_shared<AtEnd>();
  AtEndPtr arrived = std::make_shared<AtEnd>();
  AtEndPtr through = std::make_shared<AtEnd>();
  Event was_read = read->event();
  Event has_arrived = arrived->event();
  Event is_through = through->event();  // It has arrived, and every turn has its copies.
  // If steps are written into weights: the arriving step; whether the pass's missing steps were
  // submitted; and the event when they are written.
  std::uint64_t step = 0;
  bool is_brought_up = false;
  Event is_up = arrived->event();
};

WeightRing::WeightRing(const WeightRingOptions& options, std::vector<StreamedWeight> uses)
    : uses_(std::move(uses)),
      written_weights_(options.written),
      reads_change_(options.reads_change),
      reads_between_(options.reads_between),
      direct_(options.depth.direct),
      copy_lanes_(std::max(1, options.copy_lanes)),
      first_use_(first_uses(uses_)),
      stays_(staying(uses_, first_use_, options.depth, options.resident_room,
                     device_room(options, copy_lanes_))),
      order_(uses_),
      plan_(plan_slots(uses_, stays_, read_sizes(uses_, options.source), options.depth)),
      lanes_(options.lanes,
             specs_of(options,
                      depths_of(plan_, options.reads,
                                written_weights_ != nullptr ? kKeysOfUse * use_count() : 0),
                      copy_lanes_),
             kPlan, kKeysOfUse * use_count()),
      hops_({options.source, copy_lanes_, options.scratch_bytes, options.before_hop}, lanes_, uses_,
            first_use_),
      slots_(lanes_.budget(), Tier::kDevice, lanes_.device(), plan_.bytes,
             concat("the ring of ", plan_.classes.size(), " classes of slots"), Fill::kNone),
      residents_(bring_residents()),
      staging_(lanes_.budget(), Tier::kPinned, lanes_.device(), plan_.staging_bytes,
               concat("staging for the ring of ", plan_.classes.size(), " classes of slots"),
               Fill::kNone),
      rings_(plan_.classes.size()),
      next_(std::make_shared<RingPass>()),
      compute_(lanes_) {
  SLUICEWAY_CHECK(!direct_ || std::ranges::all_of(uses_,
                                                  [](const StreamedWeight& use) {
                                                    return use.source >= 0 && !use.keep;
                                                  }),
                  "ring: a direct ring has a weight without a source, expected one for each");
  know_written();
  cut_slots();
  try {
    fill();
  } catch (...) {  // Lanes write to slots.
    lanes_.stop();
    throw;
  }
}

WeightRing::~WeightRing() {
  lanes_.stop();
  try {
    wait_for(compute_.ref());
  } catch (...) {  // The device has failed, and reads nothing any more.
  }
}

// Blocks until all are there. Weights that are read need staging for the largest one meanwhile.
std::vector<std::byte*> WeightRing::bring_residents() {
  std::vector<std::byte*> places(uses_.size());
  std::uint64_t most = 0;
  for (int use = 0; use < use_count(); ++use) {
    if (stays_[at(use)]) most = std::max(most, hops_.read_bytes(use));
  }
  const Buffer staging(lanes_.budget(), Tier::kPinned, lanes_.device(), most,
                       "staging of resident weights", Fill::kNone);
  try {
    for (int use = 0; use < use_count(); ++use) {
      if (!stays_[at(use)]) continue;
      if (first_use_[at(use)] == use) {
        const StreamedWeight& weight = uses_[at(use)];
        const Buffer& buffer = resident_buffers_.emplace_back(
            lanes_.budget(), Tier::kDevice, lanes_.device(), weight.bytes(),
            "the resident " + weight.name, Fill::kNone);
        const std::byte* const read = hops_.read_bytes(use) > 0 ? staging.data() : nullptr;
        Payload payload;
        payload.name = weight.name;
        if (read != nullptr) payload.hops.push_back(hops_.read(use, staging.data(), nullptr));
        payload.hops.push_back(hops_.copy(use, read, buffer.data(), {}));
        lanes_.executor().submit(std::move(payload));
        lanes_.executor().wait(0);
        places[at(use)] = buffer.data();
      }
      places[at(use)] = places[at(first_use_[at(use)])];
    }
  } catch (...) {  // An interrupt ends a wait, and lanes still write.
    lanes_.stop();
    throw;
  }
  return places;
}

void WeightRing::cut_slots() {
  std::byte* slot = slots_.data();
  std::byte* staged = staging_.data();
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    const SlotClass& c = plan_.classes[i];
    Ring& ring = rings_[i];
    const auto take = [&](std::uint64_t bytes) { return std::exchange(slot, slot + bytes); };
    for (int k = 0; k < c.arrivals; ++k) ring.arrivals.push_back({take(c.slot_bytes), {}});
    for (int k = 0; k < c.pairs; ++k) {
      std::byte* const plus = take(c.copy_slot_bytes);
      ring.pairs.push_back({plus, c.copies == 1 ? plus : take(c.copy_slot_bytes), {}});
    }
    for (int k = 0; k < c.staging; ++k) {
      ring.staging.push_back({std::exchange(staged, staged + c.staging_slot_bytes), {}});
    }
    ring.most_entries = at(c.arrivals) + at(c.pairs) + at(c.staging);
  }
  for (int k = 0; k < plan_.part_slots; ++k) {
    parts_.push_back({std::exchange(staged, staged + plan_.part_slot_bytes), {}});
  }
  for (int use = 0; use < use_count(); ++use) ring_of(use).uses.push_back(use);
}

// ---- A pass -------------------------------------------------------------------------------------

void WeightRing::begin(std::shared_ptr<const PassWork> work) {
  SLUICEWAY_CHECK(pass_ == nullptr, "begin: pass ", begun_,
                  " has not ended; call finish() before the next one");
  SLUICEWAY_CHECK(work != nullptr && work->rounds() >= 1,
                  "begin: 0 rounds, expected work of at least 1 round");
  SLUICEWAY_CHECK(!direct_ || work->rounds() == 1, "begin: ", work->rounds(),
                  " rounds in a direct ring, expected 1");
  ended_.front().wait();
  ++begun_;
  next_->work = std::move(work);
  pass_ = std::exchange(next_, std::make_shared<RingPass>());
  for (Ring& ring : rings_) ring.next_pass = false;
  fill();
}

void WeightRing::check_ends(const char* function) const {
  SLUICEWAY_CHECK(pass_ != nullptr, function, ": no pass has begun; call begin() first");
  SLUICEWAY_CHECK(held_.empty(), function, ": ", uses_[at(held_.begin()->second.use)].name,
                  " is acquired; call release() before the pass ends");
}

void WeightRing::finish() {
  check_ends("finish");
  while (!ahead_.empty()) drop_turn();  // What this forward did not use.
  for (Ring& ring : rings_) {
    while (!ring.entries.empty() && ring.entries.front()->pass == pass_) {
      retire(ring, ring.entries.front());
    }
  }
  from_ = 0;
  for (Ring& ring : rings_) {
    if (!ring.next_pass) ring.next = 0;
    ring.next_pass = true;
  }
  pass_ = nullptr;
  ended_.front() = std::exchange(ended_.back(), Event());
  ended_.back() = compute_.reached();
  lanes_.executor().release();  // Times by pass.
  if (!reads_between_) lanes_.executor().drain();
  fill();
}

const void* WeightRing::acquire(int use, int round, int copy, StreamRef compute) {
  check_use("acquire", use);
  SLUICEWAY_CHECK(pass_ != nullptr, "acquire: no pass has begun; call begin() before ",
                  uses_[at(use)].name);
  SLUICEWAY_CHECK(round >= 0 && round < rounds(), "acquire: round is ", round, ", expected 0 to ",
                  rounds() - 1, " in pass ", begun_);
  compute_.move_to(compute);
  const std::uint64_t wanted = position(use, round);
  auto held = held_.find(wanted);
  if (held == held_.end()) {
    seek(wanted);
    const auto is_ahead = [&] { return !ahead_.empty() && ahead_.front().position == wanted; };
    while (!is_ahead() && !has_key()) {
      lanes_.executor().wait(next_key_);
      fill();
    }
    SLUICEWAY_CHECK(is_ahead(), "acquire: the ", plan_.classes[at(plan_.class_of[at(use)])].pairs,
                    " pairs of slots for ", uses_[at(use)].name,
                    " are all acquired; release() earlier ones, or make the ring deeper");
    lanes_.acquire(ahead_.front().key, compute);
    held = held_.emplace(wanted, std::move(ahead_.front())).first;
    ahead_.pop_front();
    from_ = wanted + 1;
    fill();
  }
  const Pair& pair = held->second.pair;
  return copy == 0 || !pass_->work->has_pairs() ? pair.first : pair.second;
}

void WeightRing::release(int use, int round, StreamRef compute) {
  check_use("release", use);
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) {
    return h.second.use == use && h.second.round == round;
  });
  SLUICEWAY_CHECK(held != held_.end(), "release: ", uses_[at(use)].name,
                  " is not acquired in round ", round, "; call acquire() first");
  compute_.move_to(compute);
  Event read;
  if (!compute.is_host()) {
    // A device's events are told of in the order in which somebody asked, so this asks early.
    const auto freed = std::make_shared<HostEvent>();
    const Event reached = compute_.reached();
    if (reached.state() == nullptr) {
      freed->set();
    } else {
      reached.state()->then([freed] { freed->set(); });
    }
    read = Event(freed);
  }
  const Pair& pair = held->second.pair;
  ring_of(use).pairs.push_back({pair.first, pair.second, std::move(read)});
  held_.erase(held);
  fill();
}

void WeightRing::check_use(const char* function, int use) const {
  SLUICEWAY_CHECK(use >= 0 && use < use_count(), function, ": use is ", use, ", expected 0 to ",
                  use_count() - 1);
}

// Afterwards the turn at `wanted` is the first that is ahead, and at the front of ahead_ if there
// was a pair for it.
void WeightRing::seek(std::uint64_t wanted) {
  const bool back = wanted < from_;
  // What waits comes before what changes: an interrupted call can be made again.
  while (!ahead_.empty() && (back || ahead_.front().position < wanted)) drop_turn();
  if (back) ++rewinds_;
  from_ = wanted;
  const int all = rounds();
  for (Ring& ring : rings_) {
    const std::deque<EntryPtr> entries = ring.entries;
    for (const EntryPtr& entry : entries) {
      if (!back && entry->pass != pass_) break;
      entry->next = std::max(entry->next, first_round(entry->use, wanted));
      if (back || entry->next == all) retire(ring, entry);
    }
    if (ring.next_pass && !back) continue;
    const auto first = std::partition_point(ring.uses.begin(), ring.uses.end(), [&](int use) {
      return position(use, all - 1) < wanted;
    });
    const auto next = static_cast<std::size_t>(first - ring.uses.begin());
    ring.next = back ? next : std::max(ring.next, next);
    ring.next_pass = false;
  }
  fill();
}

std::uint64_t WeightRing::position(int use, int round) const {
  return order_.position(use, round, rounds());
}

int WeightRing::first_round(int use, std::uint64_t from) const {
  return order_.first_round(use, from, rounds());
}

// ---- The ring -----------------------------------------------------------------------------------

void WeightRing::fill() {
  for (Ring& ring : rings_) move_on(ring);
  // The use that the forward needs first goes first, whatever its class.
  for (bool any = true; any;) {
    any = false;
    std::vector<Ring*> order;
    for (Ring& ring : rings_) order.push_back(&ring);
    const auto position = [](const Ring* ring) {
      return std::pair(ring->next_pass,
                       ring->next < ring->uses.size() ? ring->uses[ring->next] : INT32_MAX);
    };
    std::sort(order.begin(), order.end(),
              [&](const Ring* a, const Ring* b) { return position(a) < position(b); });
    for (Ring* ring : order) {
      if (!fetch_next(*ring)) continue;
      any = true;
      break;
    }
  }
}

bool WeightRing::fetch_next(Ring& ring) {
  if (ring.next == ring.uses.size()) {
    if (ring.next_pass || pass_ == nullptr) return false;
    ring.next = 0;
    ring.next_pass = true;
  }
  const int use = ring.uses[ring.next];
  if (ring.entries.size() == ring.most_entries) return false;
  const bool streamed = !stays_[at(use)];
  const bool comes = streamed && uses_[at(use)].source >= 0;
  const bool is_read = comes && !direct_;  // Whole, before it has a slot.
  if (is_read && (ring.staging.empty() || !has_key())) return false;
  if (comes && reads_change_ && ring.next_pass && (pass_ != nullptr || !reads_between_)) {
    return false;
  }
  if (streamed && !comes && ring.arrivals.empty()) return false;
  const auto entry = std::make_shared<Entry>();
  entry->use = use;
  entry->pass = ring.next_pass ? next_ : pass_;
  entry->lacks_arrival = streamed && !direct_;
  if (!ring.next_pass) entry->next = first_round(use, from_);
  if (!streamed) entry->arrived.reset();
  if (!is_read) entry->read.reset();
  if (is_read) {
    entry->staging = ring.staging.front();
    submit_read(entry);
    ring.staging.pop_front();
  }
  ++ring.next;
  ring.entries.push_back(entry);
  move_on(ring);
  return true;
}

void WeightRing::move_on(Ring& ring) {
  for (;;) {
    give_arrivals(ring);
    if (ring.pairs.empty() || !has_key()) return;
    const EntryPtr entry = next_entry(ring);
    if (entry == nullptr || entry->lacks_arrival || !bring_up(entry) || !has_key()) return;
    const Turn turn{position(entry->use, entry->next), entry->use, entry->next, take_key(),
                    ring.pairs.front()};
    direct_ ? submit_direct(entry, turn) : submit_copies(entry, turn);
    ring.pairs.pop_front();
    ahead_.insert(
        std::upper_bound(ahead_.begin(), ahead_.end(), turn,
                         [](const Turn& a, const Turn& b) { return a.position < b.position; }),
        turn);
    if (++entry->next == rounds()) retire(ring, entry);
  }
}

void WeightRing::give_arrivals(Ring& ring) {
  for (const EntryPtr& entry : ring.entries) {
    if (!entry->lacks_arrival) continue;
    if (ring.arrivals.empty() || !has_key()) return;
    entry->arrival = ring.arrivals.front();
    submit_arrival(entry);
    ring.arrivals.pop_front();
    entry->lacks_arrival = false;
    if (entry->is_read()) {
      ring.staging.push_back({std::exchange(entry->staging.data, nullptr), entry->has_arrived});
    }
  }
}

WeightRing::EntryPtr WeightRing::next_entry(const Ring& ring) const {
  EntryPtr first;
  for (const EntryPtr& entry : ring.entries) {
    if (entry->pass != pass_) break;
    if (first == nullptr || position(entry->use, entry->next) < position(first->use, first->next)) {
      first = entry;
    }
  }
  // A use of the same module that has not been fetched may be needed earlier.
  if (first == nullptr || ring.next_pass || ring.next == ring.uses.size()) return first;
  const int use = ring.uses[ring.next];
  const bool earlier = position(use, first_round(use, from_)) < position(first->use, first->next);
  return earlier ? nullptr : first;
}

void WeightRing::retire(Ring& ring, const EntryPtr& entry) {
  entry->through.reset();
  if (entry->is_read()) ring.staging.push_back({entry->staging.data, entry->was_read});
  if (entry->arrival.data != nullptr) {
    ring.arrivals.push_back({entry->arrival.data, entry->is_through});
  } else if (is_written(entry->use) && stays_[at(entry->use)]) {
    read_by(written(entry->use), entry->is_through);
  }
  std::erase_if(ring.entries, [gone = entry.get()](const EntryPtr& e) { return e.get() == gone; });
}

void WeightRing::drop_turn() {
  const Turn& turn = ahead_.front();
  lanes_.executor().wait(turn.key);
  ring_of(turn.use).pairs.push_back(
      {turn.pair.first, turn.pair.second, {}});  // Nobody has read it.
  ahead_.pop_front();
}

// ---- Payloads -----------------------------------------------------------------------------------

// Whoever acquires a key waits for all payloads that come to have it meanwhile. So a key that is in
// use is not given out; a turn whose key has come round again waits for a payload too many, which
// needs nothing of the caller.
bool WeightRing::has_key() const { return !lanes_.executor().busy(next_key_); }

int WeightRing::take_key() {
  return std::exchange(next_key_, (next_key_ + 1) % (kKeysOfUse * use_count()));
}

// Deadlines after a rewind come behind those before it.
Payload WeightRing::payload_of(int use, bool next_pass, std::uint64_t place) {
  Payload payload;
  payload.deadline = ((begun_ + 2 * rewinds_ + (next_pass ? 1 : 0)) << 32) + place;
  payload.name = uses_[at(use)].name;
  return payload;
}

void WeightRing::submit_read(const EntryPtr& entry) {
  Payload payload = payload_of(entry->use, entry->pass == next_, at(entry->use));
  payload.key = take_key();
  payload.hops.push_back(RingHops::await(ring_lanes::kFree, {entry->staging.free}));
  payload.hops.push_back(hops_.read(entry->use, entry->staging.data, std::move(entry->read)));
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::submit_arrival(const EntryPtr& entry) {
  Payload payload = payload_of(entry->use, entry->pass == next_, at(entry->use));
  payload.key = take_key();
  // Not as Payload::after, in the lane of the link: what this waits for may come there later.
  std::vector<Event> before = {entry->was_read, entry->arrival.free};
  if (is_written(entry->use)) {
    Written& storage = written(entry->use);
    entry->step = storage.step;
    before.push_back(storage.is_written);
    read_by(storage, entry->has_arrived);
  }
  payload.hops.push_back(RingHops::await(ring_lanes::kStaged, std::move(before)));
  payload.hops.push_back(hops_.copy(entry->use, entry->staging.data, entry->arrival.data,
                                    {std::move(entry->arrived), entry->through}));
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::submit_copies(const EntryPtr& entry, const Turn& turn) {
  Payload payload = payload_of(turn.use, false, turn.position);
  payload.key = turn.key;
  payload.hops.push_back(RingHops::await(ring_lanes::kReady, {entry->is_up, turn.pair.free}));
  const std::byte* const place = residents_[at(turn.use)];
  payload.hops.push_back(hops_.make_copies(turn.use, turn.round, copy_lane(turn.position),
                                           place != nullptr ? place : entry->arrival.data,
                                           turn.pair.first, turn.pair.second, entry->pass,
                                           entry->through));
  lanes_.executor().submit(std::move(payload));
}

// A part waits for the crossing of the one before it in its staging slot, which was submitted
// earlier, and for the slot of its turn: neither needs what comes later.
void WeightRing::submit_direct(const EntryPtr& entry, const Turn& turn) {
  const std::uint64_t read = hops_.read_bytes(turn.use);
  const std::uint64_t crosses = uses_[at(turn.use)].crossing_bytes(read);
  const std::uint64_t each = hops_.part_bytes(turn.use);
  for (std::uint64_t first = 0; first < crosses; first += each) {
    const Slot slot = std::exchange(parts_.front(), {});
    parts_.pop_front();
    const auto crossed = std::make_shared<const AtEnd>();
    const std::uint64_t bytes = std::min(each, crosses - first);
    Payload payload = payload_of(turn.use, false, turn.position);
    payload.key = turn.key;
    payload.hops = {RingHops::await(ring_lanes::kFree, {slot.free}),
                    hops_.read_part(turn.use, first, {slot.data, std::min(each, read - first)}),
                    RingHops::await(ring_lanes::kStaged, {turn.pair.free}),
                    hops_.copy_part(turn.use, first, {slot.data, bytes}, turn.pair.first,
                                    entry->pass, {crossed, entry->arrived, entry->through})};
    parts_.push_back({slot.data, crossed->event()});
    lanes_.executor().submit(std::move(payload));
  }
  entry->arrived.reset();
}

// ---- Steps that are written into weights --------------------------------------------------------

void WeightRing::know_written() {
  for (int use = 0; use < use_count(); ++use) {
    if (first_use_[at(use)] != use || !is_written(use)) continue;
    const std::size_t index = written_weights_->index_of(uses_[at(use)]);
    written_[use] = {index, written_weights_->step_of(index), {}, {}};
  }
}

LaneId WeightRing::copy_lane(std::uint64_t number) const {
  return ring_lanes::kCopies +
         static_cast<LaneId>(number % static_cast<std::uint64_t>(copy_lanes_));
}

void WeightRing::read_by(Written& storage, Event reader) {
  std::erase_if(storage.readers, [](const Event& event) { return event.happened(); });
  storage.readers.push_back(std::move(reader));
}

bool WeightRing::bring_up(const EntryPtr& entry) {
  if (!is_written(entry->use) || entry->is_brought_up) return true;
  const Written& storage = written(entry->use);
  const bool stays = stays_[at(entry->use)];
  if ((stays ? storage.step : entry->step) < pass_->work->next_step()) {
    if (!has_key()) return false;
    stays ? bring_up_resident(entry->use, pass_->work, take_key())
          : bring_up_arrival(entry, take_key());
  }
  if (stays) entry->is_up = storage.is_written;
  entry->is_brought_up = true;
  return true;
}

void WeightRing::bring_up_resident(int use, const std::shared_ptr<const PassWork>& work, int key) {
  Written& storage = written(use);
  const auto end = std::make_shared<AtEnd>();
  Payload payload = payload_of(use, false, 0);
  payload.key = key;
  std::vector<Event> before = std::exchange(storage.readers, {});
  before.push_back(storage.is_written);
  payload.hops.push_back(RingHops::await(ring_lanes::kReady, std::move(before)));
  payload.hops.push_back(
      hops_.bring_up(use, copy_lane(at(use)), residents_[at(use)], storage.step, work, {end}));
  storage.is_written = end->event();
  storage.step = work->next_step();
  written_weights_->set_copy_step(storage.index, storage.step);
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::bring_up_arrival(const EntryPtr& entry, int key) {
  Written& storage = written(entry->use);
  const std::uint64_t now = pass_->work->next_step();
  const auto up = std::make_shared<AtEnd>();
  entry->is_up = up->event();
  Payload payload = payload_of(entry->use, false, position(entry->use, entry->next));
  payload.key = key;
  std::byte* const place = entry->arrival.data;
  const LaneId lane = copy_lane(position(entry->use, entry->next));
  if (storage.step == now) {  // Another copy of it goes back, or is back.
    payload.hops.push_back(RingHops::await(ring_lanes::kReady, {entry->has_arrived}));
    payload.hops.push_back(
        hops_.bring_up(entry->use, lane, place, entry->step, pass_->work, {up, entry->through}));
    lanes_.executor().submit(std::move(payload));
    return;
  }
  const auto back = std::make_shared<AtEnd>();
  std::vector<Event> before = std::exchange(storage.readers, {});
  before.insert(before.end(), {entry->has_arrived, storage.is_written});
  payload.hops.push_back(RingHops::await(ring_lanes::kReady, std::move(before)));
  const auto landing = std::make_shared<Landing>(
      lanes_.executor(), Landing::Place{*written_weights_, storage.index, now},
      std::vector<AtEndPtr>{back, entry->through});
  payload.hops.push_back(
      hops_.bring_up(entry->use, lane, place, entry->step, pass_->work, {up}, landing));
  Hop copy = hops_.copy_back(entry->use, place, landing);
  storage.is_written = back->event();
  storage.step = now;
  const Event may_be_written = written_weights_->may_be_written(storage.index, now);
  written_weights_->expect(storage.index, now);
  if (may_be_written.happened()) {
    payload.hops.push_back(std::move(copy));
    return lanes_.executor().submit(std::move(payload));
  }
  // The forward does not wait for who reads what is in host memory; its slot does.
  Payload goes_back = payload_of(entry->use, false, position(entry->use, entry->next));
  goes_back.key = key;
  goes_back.hops.push_back(RingHops::await(ring_lanes::kReady, {entry->is_up, may_be_written}));
  goes_back.hops.push_back(std::move(copy));
  lanes_.executor().submit(std::move(payload));
  lanes_.executor().submit(std::move(goes_back));
}

void WeightRing::copy_residents_back(const std::shared_ptr<const PassWork>& work) {
  const auto key = [&] {
    while (!has_key()) lanes_.executor().wait(next_key_);
    return take_key();
  };
  for (auto& [use, storage] : written_) {
    if (!stays_[at(use)] || written_weights_->step_of(storage.index) == work->next_step()) continue;
    if (storage.step < work->next_step()) bring_up_resident(use, work, key());
    const auto end = std::make_shared<AtEnd>();
    const auto landing = std::make_shared<Landing>(
        lanes_.executor(), Landing::Place{*written_weights_, storage.index, storage.step},
        std::vector<AtEndPtr>{end});
    landing->is_up();  // What it waits for is a payload of its own, which has come to its end.
    Payload payload = payload_of(use, false, 0);
    payload.key = key();
    payload.hops.push_back(RingHops::await(ring_lanes::kReady, {storage.is_written}));
    payload.hops.push_back(hops_.copy_back(use, residents_[at(use)], landing));
    read_by(storage, end->event());
    written_weights_->expect(storage.index, storage.step);
    lanes_.executor().submit(std::move(payload));
  }
}

void WeightRing::catch_up() {
  const std::uint64_t now = written_weights_->next_step();
  for (auto& [use, storage] : written_) {
    if (stays_[at(use)] || storage.step == now) continue;
    for (const Event& reader : storage.readers) reader.wait();
    storage.is_written.wait();
    check_lanes();
    written_weights_->catch_up(storage.index);
    storage.readers.clear();
    storage.step = now;
  }
  check_lanes();
}

void WeightRing::flush(const std::shared_ptr<const PassWork>& work) {
  SLUICEWAY_CHECK(written_weights_ != nullptr, "flush: this ring only reads weights; ",
                  "make it with written weights");
  SLUICEWAY_CHECK(pass_ == nullptr, "flush: pass ", begun_, " has not ended; call finish() first");
  copy_residents_back(work);
  lanes_.executor().drain();
  catch_up();
}

}  // namespace sluiceway
