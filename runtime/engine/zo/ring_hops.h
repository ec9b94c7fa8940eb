// What a ring's lanes do to a weight: read it, copy it to the device, perturb it.
//
// Hops own what is to happen at their end (AtEnd): it happens when the last of its owners is gone,
// a hop that has finished, or one of a payload that was dropped after a failure.
//
// Lifetime: all that the constructor is given, and the slots, outlive the hops.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/noise.h"
#include "runtime/device/event_state.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/zo/low_rank_updates.h"
#include "runtime/engine/zo/weight_source.h"
#include "runtime/engine/zo/zo_weight.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

class AtEnd {
 public:
  AtEnd() = default;
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;
  ~AtEnd() { event_->set(); }

  Event event() const noexcept { return Event(event_); }

 private:
  std::shared_ptr<HostEvent> event_ = std::make_shared<HostEvent>();
};
using AtEndPtr = std::shared_ptr<const AtEnd>;

// On the thread that sees it, or at once.
void then(const Event& event, std::function<void()> action);

struct RingPass {
  int directions() const noexcept;

  std::vector<StepNoise> noises;  // By direction; none: an evaluation.
  std::shared_ptr<const ZoUpdates> updates;
};

class RingHops {
 public:
  struct Config {
    WeightSource* source = nullptr;
    NoiseFamily family = NoiseFamily::kRademacher;
    const LowRankUpdates* low_rank = nullptr;  // Null: noise is elementwise.
    int perturb_lanes = 1;
    std::function<void(LaneId lane, int use)> before_hop = {};
  };
  RingHops(Config config, EngineLanes& lanes, std::span<const ZoWeight> uses,
           std::span<const int> first_use);

  // From the source; 0 where the use is in host memory.
  std::uint64_t read_bytes(int use) const;
  Hop read(int use, std::byte* staging, AtEndPtr end);
  // Waits in the lane, on no thread.
  static Hop await(LaneId lane, Event first, Event second);
  // From host memory, or from where it was read to.
  Hop copy(int use, const std::byte* staging, std::byte* to, std::vector<AtEndPtr> ends);
  // Written before it runs: the pass.
  Hop perturb(int use, int direction, LaneId lane, const std::byte* from, std::byte* plus,
              std::byte* minus, std::shared_ptr<const RingPass> pass, AtEndPtr end);

  std::uint64_t take_disk_read() noexcept { return disk_read_.exchange(0); }

 private:
  const ZoWeight& weight(int use) const { return uses_[static_cast<std::size_t>(use)]; }
  void before(LaneId lane, int use) const;
  void perturb_elements(const ZoWeight& weight, std::uint64_t tensor,
                        const LowRankUpdates::Elements& elements, const RingPass& pass,
                        const StepNoise* noise, StreamRef stream) const;

  Config config_;
  EngineLanes& lanes_;
  std::span<const ZoWeight> uses_;
  std::span<const int> first_use_;
  std::vector<Buffer> drawn_;  // By lane: U of the direction that the lane is at.
  std::atomic<std::uint64_t> disk_read_ = 0;
};

}  // namespace sluiceway
