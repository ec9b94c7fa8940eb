#include "runtime/engine/zo/ring_hops.h"

#include <algorithm>

#include "kernels/perturb.h"
#include "runtime/engine/countdown.h"
#include "runtime/engine/zo/zo_lanes.h"

namespace sluiceway {

void then(const Event& event, std::function<void()> action) {
  if (event.state() == nullptr) return action();
  event.state()->then(std::move(action));
}

int RingPass::directions() const noexcept { return std::max(1, static_cast<int>(noises.size())); }

RingHops::RingHops(Config config, EngineLanes& lanes, std::span<const ZoWeight> uses,
                   std::span<const int> first_use)
    : config_(std::move(config)), lanes_(lanes), uses_(uses), first_use_(first_use) {
  for (int lane = 0; config_.low_rank != nullptr && lane < config_.perturb_lanes; ++lane) {
    drawn_.emplace_back(lanes.budget(), Tier::kDevice, lanes.device(),
                        config_.low_rank->most_drawn_elems() * sizeof(float),
                        "left factors of a direction", Fill::kNone);
  }
}

void RingHops::before(LaneId lane, int use) const {
  if (config_.before_hop) config_.before_hop(lane, use);
}

std::uint64_t RingHops::read_bytes(int use) const {
  const int source = weight(use).source;
  return source < 0 ? 0 : config_.source->read_bytes(static_cast<std::size_t>(source));
}

Hop RingHops::read(int use, std::byte* staging, AtEndPtr end) {
  Hop hop;
  hop.lane = zo_lanes::kDisk;
  hop.bytes = read_bytes(use);
  hop.start = [this, use, staging, bytes = hop.bytes, end = std::move(end)](StreamRef,
                                                                            const HopDone& done) {
    before(zo_lanes::kDisk, use);
    config_.source->read(static_cast<std::size_t>(weight(use).source), {staging, bytes},
                         [this, bytes, done](std::exception_ptr error) {
                           if (!error && config_.source->is_disk()) disk_read_ += bytes;
                           done(std::move(error));
                         });
  };
  return hop;
}

Hop RingHops::await(LaneId lane, std::vector<Event> events) {
  Hop hop;
  hop.lane = lane;
  hop.start = [events = std::move(events)](StreamRef, const HopDone& done) {
    const auto all = std::make_shared<Countdown>(static_cast<int>(events.size()), done);
    for (const Event& event : events) then(event, [all] { all->end(nullptr); });
  };
  return hop;
}

Hop RingHops::copy(int use, const std::byte* staging, std::byte* to, std::vector<AtEndPtr> ends) {
  Hop hop;
  hop.lane = zo_lanes::kH2d;
  hop.bytes = weight(use).bytes();
  const void* const from = staging != nullptr ? staging : weight(use).host;
  hop.run = [this, use, from, to, bytes = hop.bytes, ends = std::move(ends)](StreamRef stream) {
    before(zo_lanes::kH2d, use);
    lanes_.h2d().copy(to, from, bytes, stream);
  };
  return hop;
}

Hop RingHops::perturb(int use, int direction, LaneId lane, const std::byte* from, std::byte* plus,
                      std::byte* minus, std::shared_ptr<const RingPass> pass, AtEndPtr end) {
  Hop hop;
  hop.lane = lane;
  hop.run = [this, use, direction, lane, from, plus, minus, pass = std::move(pass),
             end = std::move(end)](StreamRef stream) {
    before(zo_lanes::kPerturb, use);
    const ZoWeight& w = weight(use);
    const std::uint64_t tensor =
        stable_hash(weight(first_use_[static_cast<std::size_t>(use)]).name);
    const LowRankUpdates::Elements elements{
        {from, static_cast<std::size_t>(w.bytes())}, plus, minus};
    const StepNoise* const noise =
        pass->noises.empty() ? nullptr : &pass->noises[static_cast<std::size_t>(direction)];
    if (config_.low_rank == nullptr) {
      return perturb_elements(w, tensor, elements, *pass, noise, stream);
    }
    const Buffer& drawn = drawn_[static_cast<std::size_t>(lane - zo_lanes::kPerturb)];
    config_.low_rank->make(tensor, elements, *pass->updates, noise, drawn.as<float>(), stream);
  };
  return hop;
}

Hop RingHops::bring_up(int use, LaneId lane, std::byte* place, std::uint64_t from,
                       std::shared_ptr<const WrittenSteps> steps, std::vector<AtEndPtr> ends,
                       LandingPtr landing) {
  Hop hop;
  hop.lane = lane;
  hop.run = [this, use, place, from, steps = std::move(steps), ends = std::move(ends),
             landing = std::move(landing)](StreamRef stream) {
    before(zo_lanes::kPerturb, use);
    const ZoWeight& w = weight(first_use_[static_cast<std::size_t>(use)]);
    write_steps(*steps, w, 0, {place, static_cast<std::size_t>(w.bytes())}, from, stream);
    if (landing != nullptr) landing->is_up();
  };
  return hop;
}

Hop RingHops::copy_back(int use, const std::byte* from, LandingPtr landing) {
  Hop hop;
  hop.lane = zo_lanes::down(config_.perturb_lanes);
  hop.bytes = weight(use).bytes();
  hop.run = [this, use, from, lane = hop.lane, bytes = hop.bytes,
             landing = std::move(landing)](StreamRef stream) {
    before(lane, use);
    lanes_.d2h().copy(landing->place(), from, bytes, stream);
    landing->has_crossed();
  };
  return hop;
}

void RingHops::perturb_elements(const ZoWeight& weight, std::uint64_t tensor,
                                const LowRankUpdates::Elements& elements, const RingPass& pass,
                                const StepNoise* noise, StreamRef stream) const {
  const std::vector<PendingUpdate> pending = pending_of(*pass.updates, tensor, weight.group);
  Theta theta;
  theta.family = config_.family;
  theta.gamma = of_group(pass.updates->gamma, weight.group, 1);
  theta.pending = pending;
  const std::size_t bytes = weight.copy_bytes();
  const DType dtype = weight.copy_dtype();
  if (noise == nullptr) {
    return materialise(elements.base, weight.form, {elements.plus, bytes}, dtype, theta,
                       Rounding::kNearest, {}, stream);
  }
  sluiceway::perturb(elements.base, weight.form, {elements.plus, bytes}, {elements.minus, bytes},
                     dtype, theta, {noise->seed, noise->step, tensor, noise->purpose}, noise->eps,
                     stream);
}

}  // namespace sluiceway
