// The work of a ring's lanes on a weight: read it, copy it to the device, write steps into it,
// perturb it, and bring it back.
//
// Hops own the action for their end (AtEnd). It runs when its last owner is destroyed: a finished
// hop, or a hop of a payload dropped after a failure.
//
// Lifetime: everything passed to the constructor, and the slots, outlive the hops.
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
#include "runtime/engine/zo/host_masters.h"
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

// A copy of a step that goes back to its master. When the hops that own it are done, it has landed
// if both have run and no lane has failed, else it is dropped; then its `ends` happen.
class Landing {
 public:
  struct Place {
    HostMasters& masters;
    std::size_t master;
    std::uint64_t step;
  };
  Landing(const Executor& executor, Place place, std::vector<AtEndPtr> ends)
      : executor_(executor), place_(place), ends_(std::move(ends)) {}
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  ~Landing() {
    const bool arrived = is_up_ && has_crossed_ && !executor_.has_failed();
    arrived ? place_.masters.land(place_.master, place_.step)
            : place_.masters.drop(place_.master, place_.step);
  }

  std::byte* place() const { return place_.masters.data(place_.master); }
  void is_up() noexcept { is_up_ = true; }  // The copy has the step; on a device, enqueued.
  void has_crossed() noexcept { has_crossed_ = true; }  // Same, for the crossing.

 private:
  const Executor& executor_;
  Place place_;
  std::vector<AtEndPtr> ends_;
  std::atomic<bool> is_up_ = false, has_crossed_ = false;
};
using LandingPtr = std::shared_ptr<Landing>;

// Runs `action` on the thread that sees the event happen, or at once.
void then(const Event& event, std::function<void()> action);

struct RingPass {
  int directions() const noexcept;

  std::vector<StepNoise> noises;  // By direction; none: an evaluation.
  std::shared_ptr<const ZoUpdates> updates;
  std::shared_ptr<const WrittenSteps> steps;  // Null: no steps are written into weights.
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

  // Returns the bytes read from the source; 0 where the use is in host memory.
  std::uint64_t read_bytes(int use) const;
  Hop read(int use, std::byte* staging, AtEndPtr end);
  // Waits in the lane without a thread.
  static Hop await(LaneId lane, std::vector<Event> events);
  // Copies from host memory, or from the place of its read.
  Hop copy(int use, const std::byte* staging, std::byte* to, std::vector<AtEndPtr> ends);
  // The pass must be set before it runs.
  Hop perturb(int use, int direction, LaneId lane, const std::byte* from, std::byte* plus,
              std::byte* minus, std::shared_ptr<const RingPass> pass, AtEndPtr end);
  // Brings a use on the device from step `from` to steps->next().
  Hop bring_up(int use, LaneId lane, std::byte* place, std::uint64_t from,
               std::shared_ptr<const WrittenSteps> steps, std::vector<AtEndPtr> ends,
               LandingPtr landing = nullptr);
  Hop copy_back(int use, const std::byte* from, LandingPtr landing);

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
  std::vector<Buffer> drawn_;  // By lane: U of its present direction.
  std::atomic<std::uint64_t> disk_read_ = 0;
};

}  // namespace sluiceway
