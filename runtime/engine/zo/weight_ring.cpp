#include "runtime/engine/zo/weight_ring.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/perturb.h"
#include "runtime/device/event_state.h"
#include "runtime/engine/zo/weight_places.h"
#include "runtime/engine/zo/zo_lanes.h"

namespace sluiceway {
namespace {

// Happens when its last owner goes: a hop that has finished, or a payload that was dropped.
class AtEnd {
 public:
  explicit AtEnd(std::shared_ptr<HostEvent> event) noexcept : event_(std::move(event)) {}
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() { event_->set(); }

 private:
  std::shared_ptr<HostEvent> event_;
};

void then(const Event& event, std::function<void()> action) {
  if (event.state() == nullptr) return action();
  event.state()->then(std::move(action));
}

int all_pairs(const SlotPlan& plan) {
  int count = 1;
  for (const SlotClass& c : plan.classes) count += c.pairs;
  return count;
}

std::uint64_t device_room(const EngineLanes::Options& lanes) {
  const std::uint64_t limit = lanes.limits[static_cast<std::size_t>(Tier::kDevice)];
  return limit - std::min(limit, lanes.resident_bytes);
}

float of_group(const std::vector<float>& values, int group, float otherwise) {
  const auto i = static_cast<std::size_t>(group);
  return i < values.size() ? values[i] : otherwise;
}

}  // namespace

struct WeightRing::Pass {
  int directions() const noexcept { return std::max(1, static_cast<int>(noises.size())); }

  std::uint64_t number = 0;
  std::vector<StepNoise> noises;  // By direction; none: an evaluation.
  std::shared_ptr<const ZoUpdates> updates;
};

struct WeightRing::Entry {
  int use = 0;
  int next = 0;                      // Direction of its first turn that has no pair.
  std::shared_ptr<const Pass> pass;  // Written when it begins, before a hop may read it.
  Arrival arrival;                   // Empty: the weight is resident.
  std::shared_ptr<HostEvent> arrived = std::make_shared<HostEvent>();
  std::shared_ptr<HostEvent> perturbed = std::make_shared<HostEvent>();
  // Of `perturbed`: its hops own it too, and the entry while there are more to come.
  std::shared_ptr<AtEnd> hops = std::make_shared<AtEnd>(perturbed);
};

WeightRing::WeightRing(const WeightRingOptions& options, std::vector<ZoWeight> uses)
    : uses_(std::move(uses)),
      family_(options.family),
      perturb_lanes_(std::max(1, options.perturb_lanes)),
      before_hop_(options.before_hop),
      first_use_(first_uses(uses_)),
      stays_(staying(uses_, first_use_, options.depth, options.resident_room,
                     device_room(options.lanes))),
      modules_(uses_.size()),
      plan_(plan_slots(uses_, stays_, options.depth)),
      lanes_(
          options.lanes,
          zo_lanes::specs(perturb_lanes_, all_pairs(plan_), options.device_cpu, options.lane_cpu),
          zo_lanes::kPlan, kKeysOfUse * use_count()),
      resident_(uses_.size()),
      rings_(plan_.classes.size()),
      updates_(std::make_shared<ZoUpdates>()),
      next_(std::make_shared<Pass>()) {
  place();
  fill();
}

WeightRing::~WeightRing() {
  lanes_.stop();
  if (!compute_) return;
  try {
    wait_for(*compute_);
  } catch (...) {  // The device has failed, and reads nothing any more.
  }
}

void WeightRing::place() {
  Budget& budget = lanes_.budget();
  const DeviceId device = lanes_.device();
  slots_ = Buffer(budget, Tier::kDevice, device, plan_.bytes,
                  concat("the ring of ", plan_.classes.size(), " classes of slots"), Fill::kNone);
  std::byte* next = slots_.data();
  for (std::size_t i = 0; i < rings_.size(); ++i) {
    const SlotClass& c = plan_.classes[i];
    const auto take = [&] { return std::exchange(next, next + c.slot_bytes); };
    for (int k = 0; k < c.arrivals; ++k) rings_[i].arrivals.push_back({take(), {}});
    for (int k = 0; k < c.pairs; ++k) {
      std::byte* const plus = take();
      rings_[i].pairs.push_back({plus, take(), {}});
    }
    rings_[i].most_entries = at(c.arrivals) + at(c.pairs);
  }
  for (int use = 0, first = 0; use < use_count(); ++use) {
    if (uses_[at(use)].module != uses_[at(first)].module) first = use;
    for (int k = first; k <= use; ++k) modules_[at(k)] = {first, use - first + 1};
  }
  Stream& link = lanes_.stream(zo_lanes::kH2d);
  for (int use = 0; use < use_count(); ++use) {
    ring_of(use).uses.push_back(use);
    if (!stays_[at(use)]) continue;
    const int first = first_use_[at(use)];
    if (first == use) {
      const ZoWeight& weight = uses_[at(use)];
      places_.emplace_back(budget, Tier::kDevice, device, weight.bytes(),
                           "the resident " + weight.name, Fill::kNone);
      resident_[at(use)] = places_.back().data();
      link.enqueue([this, &weight, to = places_.back().data()](StreamRef stream) {
        lanes_.h2d().copy(to, weight.host, weight.bytes(), stream);
      });
    }
    resident_[at(use)] = resident_[at(first)];
  }
  link.synchronize();
}

// ---- A pass -------------------------------------------------------------------------------------

void WeightRing::begin_step(std::span<const StepNoise> noises) {
  SLUICEWAY_CHECK(!noises.empty() || pass_ != nullptr,
                  "begin_step: 0 noises, expected one a direction; or begin_evaluation()");
  begin(noises);
}

void WeightRing::begin_evaluation() { begin({}); }

void WeightRing::begin(std::span<const StepNoise> noises) {
  SLUICEWAY_CHECK(pass_ == nullptr, "begin: pass ", begun_,
                  " has not ended, expected commit() or finish() before the next begins");
  ended_.front().wait();
  next_->number = ++begun_;
  next_->noises.assign(noises.begin(), noises.end());
  next_->updates = updates_;
  pass_ = std::exchange(next_, std::make_shared<Pass>());
  for (Ring& ring : rings_) ring.next_pass = false;
  fill();
}

void WeightRing::commit(ZoUpdates updates) {
  SLUICEWAY_CHECK(updates.records.size() <= kMaxPending, "commit: ", updates.records.size(),
                  " records, expected at most ", kMaxPending, "; consolidate before");
  auto committed = std::make_shared<const ZoUpdates>(std::move(updates));
  end("commit");
  updates_ = std::move(committed);
  fill();
}

void WeightRing::finish() {
  end("finish");
  fill();
}

void WeightRing::end(const char* function) {
  SLUICEWAY_CHECK(pass_ != nullptr, function, ": no pass has begun, expected begin_step() or ",
                  "begin_evaluation() before");
  SLUICEWAY_CHECK(held_.empty(), function, ": ", uses_[at(held_.begin()->second.use)].name,
                  " is acquired, expected release() before the pass ends");
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
  if (compute_ && !compute_->is_host()) ended_.back() = lanes_.compute(*compute_).record();
  lanes_.executor().release();  // Times by pass.
}

const void* WeightRing::acquire(int use, int direction, Side side, StreamRef compute) {
  check_use("acquire", use);
  SLUICEWAY_CHECK(pass_ != nullptr, "acquire: no pass has begun, expected begin_step() or ",
                  "begin_evaluation() before ", uses_[at(use)].name);
  SLUICEWAY_CHECK(direction >= 0 && direction < pass_->directions(), "acquire: direction is ",
                  direction, ", expected 0 to ", pass_->directions() - 1, ", those of pass ",
                  begun_);
  compute_ = compute;
  const std::uint64_t wanted = position(use, direction);
  auto held = held_.find(wanted);
  if (held == held_.end()) {
    seek(wanted);
    SLUICEWAY_CHECK(!ahead_.empty() && ahead_.front().position == wanted, "acquire: the ",
                    plan_.classes[at(plan_.class_of[at(use)])].pairs, " pairs of slots for ",
                    uses_[at(use)].name,
                    " are acquired, expected one that is released; release() those before it, or "
                    "make the ring deeper");
    lanes_.acquire(ahead_.front().key, compute);
    held = held_.emplace(wanted, std::move(ahead_.front())).first;
    ahead_.pop_front();
    from_ = wanted + 1;
    fill();
  }
  const Pair& pair = held->second.pair;
  return side == Side::kPlus || pass_->noises.empty() ? pair.plus : pair.minus;
}

void WeightRing::release(int use, int direction, StreamRef compute) {
  check_use("release", use);
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) {
    return h.second.use == use && h.second.direction == direction;
  });
  SLUICEWAY_CHECK(held != held_.end(), "release: ", uses_[at(use)].name,
                  " is not acquired in direction ", direction, ", expected acquire() before");
  Event read;
  if (!compute.is_host()) {
    // A device's events are told of in the order in which somebody asked. Who asked only when the
    // pair has its next use would come behind waits of the computing stream for that very use.
    const auto freed = std::make_shared<HostEvent>();
    then(lanes_.compute(compute).record(), [freed] { freed->set(); });
    read = Event(freed);
  }
  const Pair& pair = held->second.pair;
  ring_of(use).pairs.push_back({pair.plus, pair.minus, std::move(read)});
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
  if (back) ++rewinds_;
  from_ = wanted;
  while (!ahead_.empty() && (back || ahead_.front().position < wanted)) drop_turn();
  const int directions = pass_->directions();
  for (Ring& ring : rings_) {
    const std::deque<EntryPtr> entries = ring.entries;
    for (const EntryPtr& entry : entries) {
      if (!back && entry->pass != pass_) break;
      entry->next = std::max(entry->next, first_direction(entry->use, wanted));
      if (back || entry->next == directions) retire(ring, entry);
    }
    if (ring.next_pass && !back) continue;
    const auto first = std::partition_point(ring.uses.begin(), ring.uses.end(), [&](int use) {
      return position(use, directions - 1) < wanted;
    });
    const auto next = static_cast<std::size_t>(first - ring.uses.begin());
    ring.next = back ? next : std::max(ring.next, next);
    ring.next_pass = false;
  }
  fill();
}

std::uint64_t WeightRing::position(int use, int direction) const noexcept {
  const Module& module = modules_[at(use)];
  const auto u64 = [](int value) { return static_cast<std::uint64_t>(value); };
  return u64(module.first) * u64(pass_->directions()) + u64(direction) * u64(module.count) +
         u64(use - module.first);
}

// Of the use's turns at `from` or behind it; as many as there are directions: it has none.
int WeightRing::first_direction(int use, std::uint64_t from) const noexcept {
  int direction = 0;
  while (direction < pass_->directions() && position(use, direction) < from) ++direction;
  return direction;
}

// ---- The ring -----------------------------------------------------------------------------------

void WeightRing::fill() {
  for (Ring& ring : rings_) give_pairs(ring);
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
  const bool streamed = resident_[at(use)] == nullptr;
  if (ring.entries.size() == ring.most_entries || (streamed && ring.arrivals.empty())) return false;
  const auto entry = std::make_shared<Entry>();
  entry->use = use;
  entry->pass = ring.next_pass ? next_ : pass_;
  if (!ring.next_pass) entry->next = first_direction(use, from_);
  if (streamed) {
    entry->arrival = ring.arrivals.front();
    submit_copy(entry);
    ring.arrivals.pop_front();
  } else {
    entry->arrived->set();
  }
  ++ring.next;
  ring.entries.push_back(entry);
  give_pairs(ring);
  return true;
}

void WeightRing::give_pairs(Ring& ring) {
  while (!ring.pairs.empty()) {
    const EntryPtr entry = next_entry(ring);
    if (entry == nullptr) return;
    Turn turn{position(entry->use, entry->next), entry->use, entry->next, take_key(),
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
  const EntryPtr retired = entry;
  std::erase(ring.entries, retired);
  retired->hops.reset();
  if (retired->arrival.slot == nullptr) return;
  ring.arrivals.push_back({retired->arrival.slot, Event(retired->perturbed)});
}

// A stream that waits for a key waits for all payloads that come to have it meanwhile. So a key
// that is in use is not given out; a turn whose key has come round again waits for a payload too
// many, which needs nothing of the caller.
int WeightRing::take_key() {
  const int key = next_key_;
  lanes_.executor().wait(key);
  next_key_ = (key + 1) % (kKeysOfUse * use_count());
  return key;
}

// Of the deadlines of a pass: those after a rewind come behind those before it.
std::uint64_t WeightRing::serial(bool next_pass) const noexcept {
  return (begun_ + 2 * rewinds_ + (next_pass ? 1 : 0)) << 32;
}

Payload WeightRing::payload_of(int use, int key, std::uint64_t deadline) const {
  Payload payload;
  payload.key = key;
  payload.deadline = deadline;
  payload.name = uses_[at(use)].name;
  return payload;
}

void WeightRing::submit_copy(const EntryPtr& entry) {
  const ZoWeight& weight = uses_[at(entry->use)];
  const std::uint64_t deadline = serial(entry->pass == next_) + at(entry->use);
  Payload payload = payload_of(entry->use, take_key(), deadline);
  payload.after = entry->arrival.free;
  Hop& copy = payload.hops.emplace_back();
  copy.lane = zo_lanes::kH2d;
  copy.bytes = weight.bytes();
  const auto end = std::make_shared<AtEnd>(entry->arrived);
  copy.run = [this, &weight, end, hops = entry->hops, use = entry->use,
              to = entry->arrival.slot](StreamRef stream) {
    if (before_hop_) before_hop_(zo_lanes::kH2d, use);
    lanes_.h2d().copy(to, weight.host, weight.bytes(), stream);
  };
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::submit_perturb(const EntryPtr& entry, const Turn& turn) {
  const ZoWeight& weight = uses_[at(turn.use)];
  Payload payload = payload_of(turn.use, turn.key, serial(false) + turn.position);
  Hop& ready = payload.hops.emplace_back();
  ready.lane = zo_lanes::kReady;
  ready.start = [arrived = Event(entry->arrived), free = turn.pair.free](StreamRef,
                                                                         const HopDone& done) {
    then(arrived, [free, done] { then(free, [done] { done(); }); });
  };
  Hop& perturb = payload.hops.emplace_back();
  perturb.lane = zo_lanes::kPerturb +
                 static_cast<int>(turn.position % static_cast<std::uint64_t>(perturb_lanes_));
  const std::byte* const place = resident_[at(entry->use)];
  const std::byte* const w = place != nullptr ? place : entry->arrival.slot;
  const std::uint64_t tensor = stable_hash(uses_[at(first_use_[at(entry->use)])].name);
  perturb.run = [this, &weight, hops = entry->hops, w, tensor, turn,
                 pass = entry->pass](StreamRef stream) {
    if (before_hop_) before_hop_(zo_lanes::kPerturb, turn.use);
    const auto key = [&](const StepNoise& noise) {
      return NoiseKey{noise.seed, noise.step, tensor, noise.purpose};
    };
    std::vector<PendingUpdate> pending;
    for (const ZoUpdates::Record& record : pass->updates->records) {
      pending.push_back({key(record.noise), of_group(record.scale, weight.group, 0)});
    }
    Theta theta;
    theta.family = family_;
    theta.gamma = of_group(pass->updates->gamma, weight.group, 1);
    theta.pending = pending;
    const auto bytes = static_cast<std::size_t>(weight.bytes());
    const std::span plus(turn.pair.plus, bytes), minus(turn.pair.minus, bytes);
    if (pass->noises.empty()) {
      materialise({w, bytes}, weight.dtype, plus, weight.dtype, theta, Rounding::kNearest, {},
                  stream);
    } else {
      const StepNoise& noise = pass->noises[at(turn.direction)];
      sluiceway::perturb({w, bytes}, weight.dtype, plus, minus, weight.dtype, theta, key(noise),
                         noise.eps, stream);
    }
  };
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::drop_turn() {
  const Turn& turn = ahead_.front();
  lanes_.executor().wait(turn.key);
  ring_of(turn.use).pairs.push_back({turn.pair.plus, turn.pair.minus, {}});  // Nobody has read it.
  ahead_.pop_front();
}

}  // namespace sluiceway
