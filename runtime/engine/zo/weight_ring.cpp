#include "runtime/engine/zo/weight_ring.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/perturb.h"
#include "runtime/engine/zo/ring_entry.h"
#include "runtime/engine/zo/weight_places.h"
#include "runtime/engine/zo/zo_lanes.h"

namespace sluiceway {
namespace {

// Where steps are written into weights a hop may wait for one of a later deadline: that waits in
// the same lane, on no thread, so there all that can be submitted may wait at once.
zo_lanes::Depths depths_of(const SlotPlan& plan, int reads, int perturb_lanes, int written_keys) {
  zo_lanes::Depths depths{.reads = reads, .perturb_lanes = perturb_lanes};
  depths.goes_down = written_keys > 0;
  depths.staged += written_keys;
  depths.ready += written_keys;
  for (const SlotClass& c : plan.classes) {
    depths.free += c.staging;
    depths.staged += c.arrivals + c.staging;
    depths.ready += c.pairs + c.arrivals;
  }
  return depths;
}

std::uint64_t device_room(const WeightRingOptions& options, int perturb_lanes) {
  const EngineLanes::Options& lanes = options.lanes;
  const std::uint64_t limit = lanes.limits[static_cast<std::size_t>(Tier::kDevice)];
  std::uint64_t others = lanes.budget ? lanes.budget->used(Tier::kDevice) : 0;
  if (options.low_rank != nullptr) {
    others += static_cast<std::uint64_t>(perturb_lanes) * options.low_rank->most_drawn_elems() *
              sizeof(float);
  }
  return limit - std::min(limit, lanes.resident_bytes + others);
}

}  // namespace

WeightRing::WeightRing(const WeightRingOptions& options, std::vector<ZoWeight> uses)
    : uses_(std::move(uses)),
      masters_(options.masters),
      reads_change_(options.reads_change),
      perturb_lanes_(std::max(1, options.perturb_lanes)),
      first_use_(first_uses(uses_)),
      stays_(staying(uses_, first_use_, options.depth, options.resident_room,
                     device_room(options, perturb_lanes_))),
      order_(uses_),
      plan_(plan_slots(uses_, stays_, read_sizes(uses_, options.source), options.depth)),
      lanes_(options.lanes,
             zo_lanes::specs(depths_of(plan_, options.reads, perturb_lanes_,
                                       masters_ != nullptr ? kKeysOfUse * use_count() : 0),
                             options.device_cpu, options.lane_cpu),
             zo_lanes::kPlan, kKeysOfUse * use_count()),
      hops_({options.source, options.family, options.low_rank, perturb_lanes_, options.before_hop},
            lanes_, uses_, first_use_),
      slots_(lanes_.budget(), Tier::kDevice, lanes_.device(), plan_.bytes,
             concat("the ring of ", plan_.classes.size(), " classes of slots"), Fill::kNone),
      residents_(lanes_, hops_, uses_, first_use_, stays_),
      staging_(lanes_.budget(), Tier::kPinned, lanes_.device(), plan_.staging_bytes,
               concat("staging for the ring of ", plan_.classes.size(), " classes of slots"),
               Fill::kNone),
      rings_(plan_.classes.size()),
      updates_(std::make_shared<ZoUpdates>()),
      next_(std::make_shared<RingPass>()),
      compute_(lanes_) {
  know_masters();
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
      ring.pairs.push_back({plus, take(c.copy_slot_bytes), {}});
    }
    for (int k = 0; k < c.staging; ++k) {
      ring.staging.push_back({std::exchange(staged, staged + c.staging_slot_bytes), {}});
    }
    ring.most_entries = at(c.arrivals) + at(c.pairs) + at(c.staging);
  }
  for (int use = 0; use < use_count(); ++use) ring_of(use).uses.push_back(use);
}

// ---- A pass -------------------------------------------------------------------------------------

void WeightRing::begin_step(std::span<const StepNoise> noises) {
  SLUICEWAY_CHECK(
      !noises.empty() || pass_ != nullptr,
      "begin_step: 0 noises, expected one per direction; without noise call begin_evaluation()");
  begin(noises);
}

void WeightRing::begin_evaluation() { begin({}); }

void WeightRing::begin(std::span<const StepNoise> noises) {
  SLUICEWAY_CHECK(pass_ == nullptr, "begin: pass ", begun_,
                  " has not ended; call commit() or finish() before the next one");
  ended_.front().wait();
  ++begun_;
  next_->noises.assign(noises.begin(), noises.end());
  next_->updates = updates_;
  if (masters_ != nullptr) next_->steps = masters_->steps();
  pass_ = std::exchange(next_, std::make_shared<RingPass>());
  for (Ring& ring : rings_) ring.next_pass = false;
  fill();
}

void WeightRing::commit(ZoUpdates updates) {
  SLUICEWAY_CHECK(updates.records.size() <= kMaxPending, "commit: ", updates.records.size(),
                  " records, expected at most ", kMaxPending, "; consolidate first");
  auto committed = std::make_shared<const ZoUpdates>(std::move(updates));
  end("commit");
  updates_ = std::move(committed);
  fill();
}

void WeightRing::finish() {
  end("finish");
  fill();
}

void WeightRing::check_ends(const char* function) const {
  SLUICEWAY_CHECK(pass_ != nullptr, function, ": no pass has begun; call begin_step() or ",
                  "begin_evaluation() first");
  SLUICEWAY_CHECK(held_.empty(), function, ": ", uses_[at(held_.begin()->second.use)].name,
                  " is acquired; call release() before the pass ends");
}

void WeightRing::end(const char* function) {
  check_ends(function);
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
}

const void* WeightRing::acquire(int use, int direction, Side side, StreamRef compute) {
  check_use("acquire", use);
  SLUICEWAY_CHECK(pass_ != nullptr, "acquire: no pass has begun; call begin_step() or ",
                  "begin_evaluation() before ", uses_[at(use)].name);
  SLUICEWAY_CHECK(direction >= 0 && direction < pass_->directions(), "acquire: direction is ",
                  direction, ", expected 0 to ", pass_->directions() - 1, " in pass ", begun_);
  compute_.move_to(compute);
  const std::uint64_t wanted = position(use, direction);
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
  return side == Side::kPlus || pass_->noises.empty() ? pair.plus : pair.minus;
}

void WeightRing::release(int use, int direction, StreamRef compute) {
  check_use("release", use);
  const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& h) {
    return h.second.use == use && h.second.direction == direction;
  });
  SLUICEWAY_CHECK(held != held_.end(), "release: ", uses_[at(use)].name,
                  " is not acquired in direction ", direction, "; call acquire() first");
  compute_.move_to(compute);
  Event read;
  if (!compute.is_host()) {
    // A device's events are told of in the order in which somebody asked, so this asks early.
    const auto freed = std::make_shared<HostEvent>();
    then(compute_.reached(), [freed] { freed->set(); });
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
  // What waits comes before what changes: an interrupted call can be made again.
  while (!ahead_.empty() && (back || ahead_.front().position < wanted)) drop_turn();
  if (back) ++rewinds_;
  from_ = wanted;
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

std::uint64_t WeightRing::position(int use, int direction) const {
  return order_.position(use, direction, pass_->directions());
}

int WeightRing::first_direction(int use, std::uint64_t from) const {
  return order_.first_direction(use, from, pass_->directions());
}

}  // namespace sluiceway
