#include "runtime/engine/zo/ring_hops.h"

#include <algorithm>

#include "kernels/perturb.h"
#include "runtime/engine/zo/zo_lanes.h"

namespace sluiceway {
namespace {

float of_group(const std::vector<float>& values, int group, float otherwise) {
  const auto i = static_cast<std::size_t>(group);
  return i < values.size() ? values[i] : otherwise;
}

}  // namespace

void then(const Event& event, std::function<void()> action) {
  if (event.state() == nullptr) return action();
  event.state()->then(std::move(action));
}

int RingPass::directions() const noexcept { return std::max(1, static_cast<int>(noises.size())); }

RingHops::RingHops(Config config, EngineLanes& lanes, std::span<const ZoWeight> uses,
                   std::span<const int> first_use)
    : config_(std::move(config)), lanes_(lanes), uses_(uses), first_use_(first_use) {}

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
  hop.run = [this, use, direction, from, plus, minus, pass = std::move(pass),
             end = std::move(end)](StreamRef stream) {
    before(zo_lanes::kPerturb, use);
    const ZoWeight& w = weight(use);
    const std::uint64_t tensor =
        stable_hash(weight(first_use_[static_cast<std::size_t>(use)]).name);
    const auto key = [&](const StepNoise& noise) {
      return NoiseKey{noise.seed, noise.step, tensor, noise.purpose};
    };
    std::vector<PendingUpdate> pending;
    for (const ZoUpdates::Record& record : pass->updates->records) {
      pending.push_back({key(record.noise), of_group(record.scale, w.group, 0)});
    }
    Theta theta;
    theta.family = config_.family;
    theta.gamma = of_group(pass->updates->gamma, w.group, 1);
    theta.pending = pending;
    const auto bytes = static_cast<std::size_t>(w.bytes());
    if (pass->noises.empty()) {
      return materialise({from, bytes}, w.dtype, {plus, bytes}, w.dtype, theta, Rounding::kNearest,
                         {}, stream);
    }
    const StepNoise& noise = pass->noises[static_cast<std::size_t>(direction)];
    sluiceway::perturb({from, bytes}, w.dtype, {plus, bytes}, {minus, bytes}, w.dtype, theta,
                       key(noise), noise.eps, stream);
  };
  return hop;
}

}  // namespace sluiceway
