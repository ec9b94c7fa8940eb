#include "runtime/engine/zo/ring_hops.h"

#include <algorithm>

#include "kernels/perturb.h"
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
                           if (!error) disk_read_ += bytes;
                           done(std::move(error));
                         });
  };
  return hop;
}

Hop RingHops::await(LaneId lane, Event first, Event second) {
  Hop hop;
  hop.lane = lane;
  hop.start = [first = std::move(first), second = std::move(second)](StreamRef,
                                                                     const HopDone& done) {
    then(first, [second, done] { then(second, [done] { done(); }); });
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

void RingHops::perturb_elements(const ZoWeight& weight, std::uint64_t tensor,
                                const LowRankUpdates::Elements& elements, const RingPass& pass,
                                const StepNoise* noise, StreamRef stream) const {
  const auto key = [&](const StepNoise& of) {
    return NoiseKey{of.seed, of.step, tensor, of.purpose};
  };
  std::vector<PendingUpdate> pending;
  for (const ZoUpdates::Record& record : pass.updates->records) {
    pending.push_back({key(record.noise), of_group(record.scale, weight.group, 0)});
  }
  Theta theta;
  theta.family = config_.family;
  theta.gamma = of_group(pass.updates->gamma, weight.group, 1);
  theta.pending = pending;
  const std::size_t bytes = elements.base.size();
  if (noise == nullptr) {
    return materialise(elements.base, weight.dtype, {elements.plus, bytes}, weight.dtype, theta,
                       Rounding::kNearest, {}, stream);
  }
  sluiceway::perturb(elements.base, weight.dtype, {elements.plus, bytes}, {elements.minus, bytes},
                     weight.dtype, theta, key(*noise), noise->eps, stream);
}

}  // namespace sluiceway
