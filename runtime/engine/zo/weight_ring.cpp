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
  std::uint64_t number = 0;
  std::optional<StepNoise> noise;  // None: an evaluation.
  std::shared_ptr<const ZoUpdates> updates;
};

struct WeightRing::Entry {
  int use = 0;
  std::uint64_t deadline = 0;
  std::shared_ptr<const Pass> pass;  // Written when it begins, before a hop may read it.
  Arrival arrival;                   // Empty: the weight is resident.
  std::shared_ptr<HostEvent> arrived = std::make_shared<HostEvent>();
  std::shared_ptr<HostEvent> perturbed = std::make_shared<HostEvent>();
  Pair pair;
  bool has_pair = false;  // And is submitted.
};

WeightRing::WeightRing(const WeightRingOptions& options, std::vector<ZoWeight> uses)
    : uses_(std::move(uses)),
      family_(options.family),
      perturb_lanes_(std::max(1, options.perturb_lanes)),
      before_hop_(options.before_hop),
      first_use_(first_uses(uses_)),
      stays_(staying(uses_, first_use_, options.depth, options.resident_room,
                     device_room(options.lanes))),
      plan_(plan_slots(uses_, stays_, options.depth)),
      lanes_(
          options.lanes,
          zo_lanes::specs(perturb_lanes_, all_pairs(plan_), options.device_cpu, options.lane_cpu),
          zo_lanes::kPlan, kPassesInLanes * use_count()),
      resident_(uses_.size()),
      rings_(plan_.classes.size()),
      updates_(std::make_shared<ZoUpdates>()),
      next_(std::make_shared<Pass>()),
      held_(uses_.size()) {
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
    rings_[i].most_ahead = at(c.arrivals) + at(c.pairs);
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

void WeightRing::begin_step(const StepNoise& noise) { begin(noise); }
void WeightRing::begin_evaluation() { begin(std::nullopt); }

void WeightRing::begin(std::optional<StepNoise> noise) {
  SLUICEWAY_CHECK(pass_ == nullptr, "begin: pass ", begun_,
                  " has not ended, expected commit() or finish() before the next begins");
  // Its prefetch has the keys of the pass before the last one, which so has to be over.
  ended_.front().wait();
  next_->number = ++begun_;
  next_->noise = noise;
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
  for (const EntryPtr& held : held_) {
    SLUICEWAY_CHECK(held == nullptr, function, ": ", uses_[at(held->use)].name,
                    " is acquired, expected release() before the pass ends");
  }
  while (!ahead_.empty()) {  // What this forward did not use.
    const auto unused = std::find_if(ahead_.begin(), ahead_.end(),
                                     [&](const EntryPtr& e) { return e->pass == pass_; });
    if (unused == ahead_.end()) break;
    drop(static_cast<std::size_t>(unused - ahead_.begin()));
  }
  for (Ring& ring : rings_) {
    if (!ring.next_pass) ring.next = 0;
    ring.next_pass = true;
  }
  pass_ = nullptr;
  ended_.front() = std::exchange(ended_.back(), Event());
  if (compute_ && !compute_->is_host()) ended_.back() = lanes_.compute(*compute_).record();
  lanes_.executor().release();  // Times by pass.
}

const void* WeightRing::acquire(int use, Side side, StreamRef compute) {
  check_use("acquire", use);
  SLUICEWAY_CHECK(pass_ != nullptr, "acquire: no pass has begun, expected begin_step() or ",
                  "begin_evaluation() before ", uses_[at(use)].name);
  compute_ = compute;
  if (held_[at(use)] == nullptr) {
    seek(use);
    const EntryPtr entry = ahead_.front();
    SLUICEWAY_CHECK(entry->has_pair, "acquire: the ",
                    plan_.classes[at(plan_.class_of[at(use)])].pairs, " pairs of slots for ",
                    uses_[at(use)].name,
                    " are acquired, expected one that is released; release() those before it, or "
                    "make the ring deeper");
    lanes_.acquire(key_of(*entry), compute);
    ahead_.pop_front();
    held_[at(use)] = entry;
    fill();
  }
  const Pair& pair = held_[at(use)]->pair;
  return side == Side::kPlus || !pass_->noise ? pair.plus : pair.minus;
}

void WeightRing::release(int use, StreamRef compute) {
  check_use("release", use);
  SLUICEWAY_CHECK(held_[at(use)] != nullptr, "release: ", uses_[at(use)].name,
                  " is not acquired, expected acquire() before");
  Event read;
  if (!compute.is_host()) {
    // A device's events are told of in the order in which somebody asked. Who asked only when the
    // pair has its next use would come behind waits of the computing stream for that very use.
    const auto freed = std::make_shared<HostEvent>();
    then(lanes_.compute(compute).record(), [freed] { freed->set(); });
    read = Event(freed);
  }
  const EntryPtr entry = std::exchange(held_[at(use)], nullptr);
  ring_of(use).pairs.push_back({entry->pair.plus, entry->pair.minus, std::move(read)});
  fill();
}

void WeightRing::check_use(const char* function, int use) const {
  SLUICEWAY_CHECK(use >= 0 && use < use_count(), function, ": use is ", use, ", expected 0 to ",
                  use_count() - 1);
}

// Afterwards the use is at the front of ahead_.
void WeightRing::seek(int use) {
  const auto wanted = [&](const EntryPtr& e) { return e->pass == pass_ && e->use == use; };
  const bool reached = std::any_of(ahead_.begin(), ahead_.end(), wanted);
  // Otherwise it lies behind what the ring reaches, or before where the forward was.
  while (!ahead_.empty() && !wanted(ahead_.front())) drop(0);
  if (!reached) ++rewinds_;
  for (Ring& ring : rings_) {
    const auto next = static_cast<std::size_t>(
        std::lower_bound(ring.uses.begin(), ring.uses.end(), use) - ring.uses.begin());
    if (!reached) {
      ring.next = next;
      ring.next_pass = false;
    } else if (!ring.next_pass) {
      ring.next = std::max(ring.next, next);  // What has not been submitted is skipped.
    }
  }
  fill();
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
  if (ring.ahead == ring.most_ahead || (streamed && ring.arrivals.empty())) return false;
  const auto entry = std::make_shared<Entry>();
  entry->use = use;
  entry->pass = ring.next_pass ? next_ : pass_;
  const std::uint64_t pass = begun_ + 2 * rewinds_ + (ring.next_pass ? 1 : 0);
  entry->deadline = pass * uses_.size() + at(use);
  if (streamed) {
    entry->arrival = ring.arrivals.front();
    submit_copy(entry);
    ring.arrivals.pop_front();
  } else {
    entry->arrived->set();
  }
  ++ring.next;
  ++ring.ahead;
  ring.waiting.push_back(entry);
  ahead_.insert(std::upper_bound(
                    ahead_.begin(), ahead_.end(), entry,
                    [](const EntryPtr& a, const EntryPtr& b) { return a->deadline < b->deadline; }),
                entry);
  give_pairs(ring);
  return true;
}

void WeightRing::give_pairs(Ring& ring) {
  while (!ring.waiting.empty() && !ring.pairs.empty()) {
    const EntryPtr entry = ring.waiting.front();
    if (entry->pass != pass_) return;
    entry->pair = ring.pairs.front();
    submit_perturb(entry);
    entry->has_pair = true;
    ring.pairs.pop_front();
    ring.waiting.pop_front();
    --ring.ahead;
    if (entry->arrival.slot != nullptr) {
      ring.arrivals.push_back({entry->arrival.slot, Event(entry->perturbed)});
    }
  }
}

// A stream that waits for a key would wait for another pass of the same use, too.
int WeightRing::key_of(const Entry& entry) const noexcept {
  const std::uint64_t pass = begun_ + (entry.pass == next_ ? 1 : 0);
  return kPassesInLanes * entry.use + static_cast<int>(pass % kPassesInLanes);
}

Payload WeightRing::payload_of(const Entry& entry) const {
  Payload payload;
  payload.key = key_of(entry);
  payload.deadline = entry.deadline;
  payload.name = uses_[at(entry.use)].name;
  return payload;
}

void WeightRing::submit_copy(const EntryPtr& entry) {
  const ZoWeight& weight = uses_[at(entry->use)];
  Payload payload = payload_of(*entry);
  payload.after = entry->arrival.free;
  Hop& copy = payload.hops.emplace_back();
  copy.lane = zo_lanes::kH2d;
  copy.bytes = weight.bytes();
  const auto end = std::make_shared<AtEnd>(entry->arrived);
  copy.run = [this, &weight, end, use = entry->use, to = entry->arrival.slot](StreamRef stream) {
    if (before_hop_) before_hop_(zo_lanes::kH2d, use);
    lanes_.h2d().copy(to, weight.host, weight.bytes(), stream);
  };
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::submit_perturb(const EntryPtr& entry) {
  const ZoWeight& weight = uses_[at(entry->use)];
  Payload payload = payload_of(*entry);
  Hop& ready = payload.hops.emplace_back();
  ready.lane = zo_lanes::kReady;
  ready.start = [arrived = Event(entry->arrived), free = entry->pair.free](StreamRef,
                                                                           const HopDone& done) {
    then(arrived, [free, done] { then(free, [done] { done(); }); });
  };
  Hop& perturb = payload.hops.emplace_back();
  perturb.lane = zo_lanes::kPerturb +
                 static_cast<int>(entry->deadline % static_cast<std::uint64_t>(perturb_lanes_));
  const std::byte* const place = resident_[at(entry->use)];
  const std::byte* const w = place != nullptr ? place : entry->arrival.slot;
  const auto end = std::make_shared<AtEnd>(entry->perturbed);
  const std::uint64_t tensor = stable_hash(uses_[at(first_use_[at(entry->use)])].name);
  perturb.run = [this, &weight, end, w, tensor, use = entry->use, pair = entry->pair,
                 pass = entry->pass](StreamRef stream) {
    if (before_hop_) before_hop_(zo_lanes::kPerturb, use);
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
    const std::span plus(pair.plus, bytes), minus(pair.minus, bytes);
    if (!pass->noise) {
      materialise({w, bytes}, weight.dtype, plus, weight.dtype, theta, Rounding::kNearest, {},
                  stream);
    } else {
      sluiceway::perturb({w, bytes}, weight.dtype, plus, minus, weight.dtype, theta,
                         key(*pass->noise), pass->noise->eps, stream);
    }
  };
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::drop(std::size_t place) {
  lanes_.executor().wait(key_of(*ahead_[place]));
  const EntryPtr entry = std::move(ahead_[place]);
  ahead_.erase(ahead_.begin() + static_cast<std::ptrdiff_t>(place));
  Ring& ring = ring_of(entry->use);
  if (entry->has_pair) {  // Nobody has read it.
    ring.pairs.push_back({entry->pair.plus, entry->pair.minus, {}});
    return;
  }
  std::erase(ring.waiting, entry);
  --ring.ahead;
  if (entry->arrival.slot != nullptr) ring.arrivals.push_back({entry->arrival.slot, {}});
}

}  // namespace sluiceway
