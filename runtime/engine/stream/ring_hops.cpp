#include "runtime/engine/stream/ring_hops.h"

#include "runtime/engine/countdown.h"

namespace sluiceway {

RingHops::RingHops(Config config, EngineLanes& lanes, std::span<const StreamedWeight> uses,
                   std::span<const int> first_use)
    : config_(std::move(config)), lanes_(lanes), uses_(uses), first_use_(first_use) {
  for (int lane = 0; config_.scratch_bytes > 0 && lane < config_.copy_lanes; ++lane) {
    scratch_.emplace_back(lanes.budget(), Tier::kDevice, lanes.device(), config_.scratch_bytes,
                          "scratch memory of a lane", Fill::kNone);
  }
}

void RingHops::before(LaneId lane, int use) const {
  if (config_.before_hop) config_.before_hop(lane, use);
}

std::uint64_t RingHops::read_bytes(int use) const {
  const int source = weight(use).source;
  return source < 0 ? 0 : config_.source->read_bytes(static_cast<std::size_t>(source));
}

std::uint64_t RingHops::part_bytes(int use) const {
  return config_.source->part_bytes(static_cast<std::size_t>(weight(use).source));
}

Hop RingHops::read(int use, std::byte* staging, AtEndPtr end) {
  Hop hop;
  hop.lane = ring_lanes::kDisk;
  hop.bytes = read_bytes(use);
  hop.start = [this, use, staging, bytes = hop.bytes, end = std::move(end)](StreamRef,
                                                                            const HopDone& done) {
    before(ring_lanes::kDisk, use);
    config_.source->read(static_cast<std::size_t>(weight(use).source), {staging, bytes},
                         counted(bytes, done));
  };
  return hop;
}

Hop RingHops::read_part(int use, std::uint64_t first, std::span<std::byte> staging) {
  Hop hop;
  hop.lane = ring_lanes::kDisk;
  hop.bytes = staging.size();
  hop.start = [this, use, first, staging](StreamRef, const HopDone& done) {
    before(ring_lanes::kDisk, use);
    config_.source->read_part(static_cast<std::size_t>(weight(use).source), first, staging,
                              counted(staging.size(), done));
  };
  return hop;
}

WeightSource::Done RingHops::counted(std::uint64_t bytes, const HopDone& done) {
  return [this, bytes, done](std::exception_ptr error) {
    if (!error && config_.source->is_disk()) disk_read_ += bytes;
    done(std::move(error));
  };
}

Hop RingHops::await(LaneId lane, std::vector<Event> events) {
  Hop hop;
  hop.lane = lane;
  hop.start = [events = std::move(events)](StreamRef, const HopDone& done) {
    const auto all = std::make_shared<Countdown>(static_cast<int>(events.size()), done);
    for (const Event& event : events) {
      if (event.state() == nullptr) {
        all->end(nullptr);
      } else {
        event.state()->then([all] { all->end(nullptr); });
      }
    }
  };
  return hop;
}

Hop RingHops::copy(int use, const std::byte* staging, std::byte* to, std::vector<AtEndPtr> ends) {
  const auto* const host = static_cast<const std::byte*>(weight(use).host);
  Hop hop;
  hop.lane = ring_lanes::kH2d;
  hop.bytes = weight(use).bytes();
  hop.run = [this, use, from = staging != nullptr ? staging : host, to, bytes = hop.bytes,
             ends = std::move(ends)](StreamRef stream) {
    before(ring_lanes::kH2d, use);
    lanes_.h2d().copy(to, from, bytes, stream);
  };
  return hop;
}

Hop RingHops::copy_part(int use, std::uint64_t first, std::span<const std::byte> staging,
                        std::byte* to, std::shared_ptr<const RingPass> pass,
                        std::vector<AtEndPtr> ends) {
  Hop hop;
  hop.lane = ring_lanes::kH2d;
  hop.bytes = staging.size();
  hop.run = [this, use, first, staging, to, pass = std::move(pass),
             ends = std::move(ends)](StreamRef stream) {
    before(ring_lanes::kH2d, use);
    const bool is_packed = weight(use).computed.has_value();
    std::byte* const arrives = is_packed ? scratch_.front().as<std::byte>().data() : to + first;
    lanes_.h2d().copy(arrives, staging.data(), staging.size(), stream);
    if (!is_packed) return;
    pass->work->make_copies(first_of(use), 0, {{arrives, staging.size()}, first, to, nullptr, {}},
                            stream);
  };
  return hop;
}

Hop RingHops::make_copies(int use, int round, LaneId lane, const std::byte* from, std::byte* first,
                          std::byte* second, std::shared_ptr<const RingPass> pass, AtEndPtr end) {
  TurnCopies copies{{from, static_cast<std::size_t>(weight(use).bytes())}, 0, first, second, {}};
  if (!scratch_.empty()) {
    const Buffer& scratch = scratch_[static_cast<std::size_t>(lane - ring_lanes::kCopies)];
    copies.scratch = {scratch.data(), scratch.size()};
  }
  Hop hop;
  hop.lane = lane;
  hop.run = [this, use, round, copies, pass = std::move(pass),
             end = std::move(end)](StreamRef stream) {
    before(ring_lanes::kCopies, use);
    pass->work->make_copies(first_of(use), round, copies, stream);
  };
  return hop;
}

Hop RingHops::bring_up(int use, LaneId lane, std::byte* place, std::uint64_t from,
                       std::shared_ptr<const PassWork> work, std::vector<AtEndPtr> ends,
                       LandingPtr landing) {
  Hop hop;
  hop.lane = lane;
  hop.run = [this, use, place, from, work = std::move(work), ends = std::move(ends),
             landing = std::move(landing)](StreamRef stream) {
    before(ring_lanes::kCopies, use);
    const StreamedWeight& w = first_of(use);
    work->write_steps(w, {place, static_cast<std::size_t>(w.bytes())}, from, stream);
    if (landing != nullptr) landing->is_up();
  };
  return hop;
}

Hop RingHops::copy_back(int use, const std::byte* from, LandingPtr landing) {
  Hop hop;
  hop.lane = ring_lanes::down(config_.copy_lanes);
  hop.bytes = weight(use).bytes();
  hop.run = [this, use, from, lane = hop.lane, bytes = hop.bytes,
             landing = std::move(landing)](StreamRef stream) {
    before(lane, use);
    lanes_.d2h().copy(landing->place(), from, bytes, stream);
    landing->has_crossed();
  };
  return hop;
}

}  // namespace sluiceway
