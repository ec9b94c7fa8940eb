#include <algorithm>
#include <utility>

#include "runtime/engine/zo/ring_entry.h"
#include "runtime/engine/zo/zo_lanes.h"

namespace sluiceway {

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
  const bool is_read = streamed && uses_[at(use)].source >= 0;
  if (is_read && (ring.staging.empty() || !has_key())) return false;
  if (is_read && reads_change_ && ring.next_pass && pass_ != nullptr) return false;
  if (streamed && !is_read && ring.arrivals.empty()) return false;
  const auto entry = std::make_shared<Entry>();
  entry->use = use;
  entry->pass = ring.next_pass ? next_ : pass_;
  entry->lacks_arrival = streamed;
  if (!ring.next_pass) entry->next = first_direction(use, from_);
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
    submit_perturb(entry, turn);
    ring.pairs.pop_front();
    ahead_.insert(
        std::upper_bound(ahead_.begin(), ahead_.end(), turn,
                         [](const Turn& a, const Turn& b) { return a.position < b.position; }),
        turn);
    if (++entry->next == pass_->directions()) retire(ring, entry);
  }
}

void WeightRing::give_arrivals(Ring& ring) {
  for (const EntryPtr& entry : ring.entries) {
    if (!entry->lacks_arrival) continue;
    if (ring.arrivals.empty() || !has_key()) return;
    entry->arrival = ring.arrivals.front();
    submit_copy(entry);
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
  const bool earlier =
      position(use, first_direction(use, from_)) < position(first->use, first->next);
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
  ring_of(turn.use).pairs.push_back({turn.pair.plus, turn.pair.minus, {}});  // Nobody has read it.
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
  payload.hops.push_back(RingHops::await(zo_lanes::kFree, {entry->staging.free}));
  payload.hops.push_back(hops_.read(entry->use, entry->staging.data, std::move(entry->read)));
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::submit_copy(const EntryPtr& entry) {
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
  payload.hops.push_back(RingHops::await(zo_lanes::kStaged, std::move(before)));
  payload.hops.push_back(hops_.copy(entry->use, entry->staging.data, entry->arrival.data,
                                    {std::move(entry->arrived), entry->through}));
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::submit_perturb(const EntryPtr& entry, const Turn& turn) {
  Payload payload = payload_of(turn.use, false, turn.position);
  payload.key = turn.key;
  payload.hops.push_back(RingHops::await(zo_lanes::kReady, {entry->is_up, turn.pair.free}));
  const std::byte* const place = residents_.of(turn.use);
  payload.hops.push_back(hops_.perturb(turn.use, turn.direction, perturb_lane(turn.position),
                                       place != nullptr ? place : entry->arrival.data,
                                       turn.pair.plus, turn.pair.minus, entry->pass,
                                       entry->through));
  lanes_.executor().submit(std::move(payload));
}

}  // namespace sluiceway
