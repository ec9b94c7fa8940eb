#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/zo/ring_entry.h"
#include "runtime/engine/zo/zo_lanes.h"

namespace sluiceway {

// ---- Steps that are written into weights --------------------------------------------------------

void WeightRing::know_masters() {
  for (int use = 0; use < use_count(); ++use) {
    if (first_use_[at(use)] != use || !is_written(use)) continue;
    const std::size_t master = masters_->index_of(uses_[at(use)]);
    written_[use] = {master, masters_->step_of(master), {}, {}};
  }
}

LaneId WeightRing::perturb_lane(std::uint64_t number) const {
  return zo_lanes::kPerturb +
         static_cast<LaneId>(number % static_cast<std::uint64_t>(perturb_lanes_));
}

void WeightRing::read_by(Written& storage, Event reader) {
  std::erase_if(storage.readers, [](const Event& event) { return event.happened(); });
  storage.readers.push_back(std::move(reader));
}

bool WeightRing::bring_up(const EntryPtr& entry) {
  if (!is_written(entry->use) || entry->is_brought_up) return true;
  const Written& storage = written(entry->use);
  const bool stays = stays_[at(entry->use)];
  if ((stays ? storage.step : entry->step) < pass_->steps->next()) {
    if (!has_key()) return false;
    stays ? bring_up_resident(entry->use, pass_->steps, take_key())
          : bring_up_arrival(entry, take_key());
  }
  if (stays) entry->is_up = storage.is_written;
  entry->is_brought_up = true;
  return true;
}

void WeightRing::bring_up_resident(int use, const std::shared_ptr<const WrittenSteps>& steps,
                                   int key) {
  Written& storage = written(use);
  const auto end = std::make_shared<AtEnd>();
  Payload payload = payload_of(use, false, 0);
  payload.key = key;
  std::vector<Event> before = std::exchange(storage.readers, {});
  before.push_back(storage.is_written);
  payload.hops.push_back(RingHops::await(zo_lanes::kReady, std::move(before)));
  payload.hops.push_back(
      hops_.bring_up(use, perturb_lane(at(use)), residents_.of(use), storage.step, steps, {end}));
  storage.is_written = end->event();
  storage.step = steps->next();
  masters_->set_copy_step(storage.master, storage.step);
  lanes_.executor().submit(std::move(payload));
}

void WeightRing::bring_up_arrival(const EntryPtr& entry, int key) {
  Written& storage = written(entry->use);
  const std::uint64_t now = pass_->steps->next();
  const auto up = std::make_shared<AtEnd>();
  entry->is_up = up->event();
  Payload payload = payload_of(entry->use, false, position(entry->use, entry->next));
  payload.key = key;
  std::byte* const place = entry->arrival.data;
  const LaneId lane = perturb_lane(position(entry->use, entry->next));
  if (storage.step == now) {  // Another copy of it goes back, or is back.
    payload.hops.push_back(RingHops::await(zo_lanes::kReady, {entry->has_arrived}));
    payload.hops.push_back(
        hops_.bring_up(entry->use, lane, place, entry->step, pass_->steps, {up, entry->through}));
    lanes_.executor().submit(std::move(payload));
    return;
  }
  const auto back = std::make_shared<AtEnd>();
  std::vector<Event> before = std::exchange(storage.readers, {});
  before.insert(before.end(), {entry->has_arrived, storage.is_written});
  payload.hops.push_back(RingHops::await(zo_lanes::kReady, std::move(before)));
  const auto landing =
      std::make_shared<Landing>(lanes_.executor(), Landing::Place{*masters_, storage.master, now},
                                std::vector<AtEndPtr>{back, entry->through});
  payload.hops.push_back(
      hops_.bring_up(entry->use, lane, place, entry->step, pass_->steps, {up}, landing));
  Hop copy = hops_.copy_back(entry->use, place, landing);
  storage.is_written = back->event();
  storage.step = now;
  const Event may_be_written = masters_->may_be_written(storage.master, now);
  masters_->expect(storage.master, now);
  if (may_be_written.happened()) {
    payload.hops.push_back(std::move(copy));
    return lanes_.executor().submit(std::move(payload));
  }
  // The forward does not wait for who reads what is in host memory; its slot does.
  Payload goes_back = payload_of(entry->use, false, position(entry->use, entry->next));
  goes_back.key = key;
  goes_back.hops.push_back(RingHops::await(zo_lanes::kReady, {entry->is_up, may_be_written}));
  goes_back.hops.push_back(std::move(copy));
  lanes_.executor().submit(std::move(payload));
  lanes_.executor().submit(std::move(goes_back));
}

void WeightRing::copy_residents_back() {
  const std::shared_ptr<const WrittenSteps> steps = masters_->steps();
  const auto key = [&] {
    while (!has_key()) lanes_.executor().wait(next_key_);
    return take_key();
  };
  for (auto& [use, storage] : written_) {
    if (!stays_[at(use)] || masters_->step_of(storage.master) == steps->next()) continue;
    if (storage.step < steps->next()) bring_up_resident(use, steps, key());
    const auto end = std::make_shared<AtEnd>();
    const auto landing = std::make_shared<Landing>(
        lanes_.executor(), Landing::Place{*masters_, storage.master, storage.step},
        std::vector<AtEndPtr>{end});
    landing->is_up();  // What it waits for is a payload of its own, which has come to its end.
    Payload payload = payload_of(use, false, 0);
    payload.key = key();
    payload.hops.push_back(RingHops::await(zo_lanes::kReady, {storage.is_written}));
    payload.hops.push_back(hops_.copy_back(use, residents_.of(use), landing));
    read_by(storage, end->event());
    masters_->expect(storage.master, storage.step);
    lanes_.executor().submit(std::move(payload));
  }
}

void WeightRing::catch_up() {
  const std::uint64_t now = masters_->next_step();
  for (auto& [use, storage] : written_) {
    if (stays_[at(use)] || storage.step == now) continue;
    for (const Event& reader : storage.readers) reader.wait();
    storage.is_written.wait();
    check_lanes();
    masters_->catch_up(storage.master);
    storage.readers.clear();
    storage.step = now;
  }
  check_lanes();
}

void WeightRing::flush() {
  SLUICEWAY_CHECK(masters_ != nullptr, "flush: this ring only reads weights; ",
                  "make it with masters");
  SLUICEWAY_CHECK(pass_ == nullptr, "flush: pass ", begun_,
                  " has not ended; call commit() or finish() first");
  copy_residents_back();
  lanes_.executor().drain();
  catch_up();
}

}  // namespace sluiceway
