// The work of a ring's lanes on a weight: read it, copy it to the device, write steps into it, make
// the copies of a turn, and bring it back.
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

#include "runtime/device/event_state.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/stream/ring_client.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

//   free    a weight to be read waits, without a thread, for a staging slot disk    it is read into
//   the slot; several requests at a time
//   staged  it waits, without a thread, for its read, if any, and for an arrival slot h2d     it
//   arrives ready   it waits, without a thread, for its arrival and for a pair of slots copies  its
//   copies are made, and steps are written into it; one lane or several down    it goes back to
//   host memory, only where steps are written into weights
namespace ring_lanes {
inline constexpr LaneId kFree = 0, kDisk = 1, kStaged = 2, kH2d = 3, kReady = 4, kCopies = 5;
inline constexpr LaneId down(int copy_lanes) noexcept { return kCopies + copy_lanes; }
}  // namespace ring_lanes

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

// A copy of a step that goes back to host memory. When the hops that own it are done, it has landed
// if both have run and no lane has failed, else it is dropped; then its `ends` happen.
class Landing {
 public:
  struct Place {
    WrittenWeights& weights;
    std::size_t index;
    std::uint64_t step;
  };
  Landing(const Executor& executor, Place place, std::vector<AtEndPtr> ends)
      : executor_(executor), place_(place), ends_(std::move(ends)) {}
  Landing(const Landing&) = delete;
  Landing& operator=(const Landing&) = delete;
  ~Landing() {
    const bool arrived = is_up_ && has_crossed_ && !executor_.has_failed();
    arrived ? place_.weights.land(place_.index, place_.step)
            : place_.weights.drop(place_.index, place_.step);
  }

  std::byte* place() const { return place_.weights.data(place_.index); }
  void is_up() noexcept { is_up_ = true; }  // The copy has the step; on a device, enqueued.
  void has_crossed() noexcept { has_crossed_ = true; }  // Same, for the crossing.

 private:
  const Executor& executor_;
  Place place_;
  std::vector<AtEndPtr> ends_;
  std::atomic<bool> is_up_ = false, has_crossed_ = false;
};
using LandingPtr = std::shared_ptr<Landing>;

// A pass, whose work is known when it begins.
struct RingPass {
  std::shared_ptr<const PassWork> work;
};

class RingHops {
 public:
  struct Config {
    WeightSource* source = nullptr;
    int copy_lanes = 1;
    std::size_t scratch_bytes = 0;  // Of each of these lanes.
    std::function<void(LaneId lane, int use)> before_hop = {};
  };
  RingHops(Config config, EngineLanes& lanes, std::span<const StreamedWeight> uses,
           std::span<const int> first_use);

  // Returns the bytes read from the source; 0 where the use is in host memory.
  std::uint64_t read_bytes(int use) const;
  std::uint64_t part_bytes(int use) const;
  Hop read(int use, std::byte* staging, AtEndPtr end);
  // In a direct ring: a part of the use, from byte `first` on. `to`: the slot of its turn. A part
  // that is not of the type that turns read arrives in scratch memory, and is unpacked from there.
  Hop read_part(int use, std::uint64_t first, std::span<std::byte> staging);
  Hop copy_part(int use, std::uint64_t first, std::span<const std::byte> staging, std::byte* to,
                std::shared_ptr<const RingPass> pass, std::vector<AtEndPtr> ends);
  // Waits in the lane without a thread.
  static Hop await(LaneId lane, std::vector<Event> events);
  // Copies from host memory, or from the place of its read.
  Hop copy(int use, const std::byte* staging, std::byte* to, std::vector<AtEndPtr> ends);
  // The pass must have begun before it runs.
  Hop make_copies(int use, int round, LaneId lane, const std::byte* from, std::byte* first,
                  std::byte* second, std::shared_ptr<const RingPass> pass, AtEndPtr end);
  // Brings a use on the device from step `from` to work->next_step().
  Hop bring_up(int use, LaneId lane, std::byte* place, std::uint64_t from,
               std::shared_ptr<const PassWork> work, std::vector<AtEndPtr> ends,
               LandingPtr landing = nullptr);
  Hop copy_back(int use, const std::byte* from, LandingPtr landing);

  std::uint64_t take_disk_read() noexcept { return disk_read_.exchange(0); }

 private:
  const StreamedWeight& weight(int use) const { return uses_[static_cast<std::size_t>(use)]; }
  const StreamedWeight& first_of(int use) const {
    return weight(first_use_[static_cast<std::size_t>(use)]);
  }
  void before(LaneId lane, int use) const;
  WeightSource::Done counted(std::uint64_t bytes, const HopDone& done);

  Config config_;
  EngineLanes& lanes_;
  std::span<const StreamedWeight> uses_;
  std::span<const int> first_use_;
  std::vector<Buffer> scratch_;  // By lane that makes copies; in a direct ring of the link's.
  std::atomic<std::uint64_t> disk_read_ = 0;
};

}  // namespace sluiceway
