// Streams weights through a ring of device slots, two perturbed copies each.
//
//   disk     W of use k    -> staging slot    for weights of a source, when the slot is free
//   h2d      W of use k    -> arrival slot    when the slot is free, one pass ahead at most
//   perturb  arrival slot  -> pair of slots   theta +- eps z, when a pair of the class is free
//   compute  acquire() .. release()           reads the pair
//
// With masters, steps are written into the weights instead of being replayed:
//
//   perturb  arrival slot, or resident  <- write_steps()   before its first turn of a pass
//   down     arrival slot  -> host memory     for streamed ones, while the forwards run
//
// One pass: begin_step(), then acquire(), acquire(), release() for each turn, then commit(). A turn
// is a use in one direction; a step has one direction for each noise, an evaluation only direction
// 0. Turns go module by module, direction by direction within a module, and use by use within that.
// So one arrival serves all directions, and many directions need no more slots than one.
//
// The first weights of the next pass cross the link before commit(). They are perturbed from
// begin_step() on, which knows the noises, or become plain copies in an evaluation. Resident
// weights are perturbed from their place on the device into the same pairs. Without masters nothing
// crosses from device to host.
//
// Turns may be taken in another order, more slowly: a skipped turn gives its slots back, and
// acquire() of an earlier turn reloads it and continues from there. The bits do not depend on the
// order, nor on depths, lanes or the resident set.
//
// Each read, arrival and perturbation is a payload of its own. It is submitted once it needs only
// the lanes, the source and the device. So no payload holds a lane while it waits for the caller,
// whatever order the caller uses, also after a failure.
// Invariants, which the tests name:
//   R1  An arrival slot is written when the previous use in that slot has been perturbed in every
//       direction.
//   R2  A pair is written behind the event that release() recorded.
//   R3  A payload that waits in a lane waits only for payloads submitted earlier. Where these may
//       come later in the same lane, the wait holds no thread: no deadlock.
//   R4  A turn is perturbed with the noise and the updates of its own pass.
//   R5  A staging slot is read into when its previous content has crossed the link.
//   R6  A weight in host memory is written when every copy submitted before has arrived, and copied
//       when every write submitted before is done.
//   R7  Missing steps are written into each copy, even if other copies of its storage have them:
//       the same bits; the first copy goes back. So a tied weight, or one that crossed before its
//       step was known, receives no step twice.
//   R8  While a snapshot is read, a weight that goes back waits in its slot for the reader, and the
//       forward does not wait (master_snapshot.h), except for a further use of a tied weight, which
//       crosses when the first has gone back.
//
// On a CUDA device the caller is a pass ahead at most: begin_step() and begin_evaluation() wait
// until the device has finished the last pass but one. Any call may wait while the lanes have
// kKeysOfUse payloads for each use. acquire() waits until the perturbation of the turn has been
// enqueued, so the caller is as many turns ahead of the device as there are pairs. Work that
// reads a pair on a stream other than the last one that acquired it must come before the stream
// passed to release().
//
// Thread safety: one thread at a time calls; halves in lock step count as one.
// Lifetime:      host memory of the weights, their source and the computing streams outlive the
//                ring; its destructor waits for reads in flight.
// Errors:        OutOfMemory, with both byte counts: the ring does not fit. InvalidArgument: a call
//                out of place; nothing changed. The next call, and each one after it, rethrows an
//                exception of a lane, with lane and weight named.
// Cost:          a pass reads each streamed use once and moves it once over the link, for any
//                number of directions; with masters, each streamed weight also returns once, if a
//                step was made since.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/noise.h"
#include "runtime/engine/computing_stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/zo/host_masters.h"
#include "runtime/engine/zo/resident_weights.h"
#include "runtime/engine/zo/ring_hops.h"
#include "runtime/engine/zo/slot_plan.h"
#include "runtime/engine/zo/weight_places.h"
#include "runtime/engine/zo/weight_source.h"
#include "runtime/engine/zo/zo_weight.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

struct WeightRingOptions {
  explicit WeightRingOptions(DeviceId device) noexcept : lanes(device) {}

  static constexpr std::uint64_t kWhatIsLeft = UINT64_MAX;

  EngineLanes::Options lanes;
  RingDepth depth;
  std::uint64_t resident_room = 0;  // Bytes for weights that may stay, beside those that must.
  NoiseFamily family = NoiseFamily::kRademacher;
  // For low-rank noise. Outlives the ring, and is written only between passes.
  const LowRankUpdates* low_rank = nullptr;
  WeightSource* source = nullptr;  // For weights outside host memory.
  bool reads_change = false;       // At each step, so nothing is read ahead.
  // Receive the steps, for weights in host memory; null: weights are only read.
  HostMasters* masters = nullptr;
  int reads = 4;  // Concurrent reads of the source.
  int perturb_lanes = 1;
  int device_cpu = -1;
  int lane_cpu = -1;
  // Called in a hop before its work, so that tests can wait or throw there.
  std::function<void(LaneId lane, int use)> before_hop = {};
};

class WeightRing {
 public:
  WeightRing(const WeightRingOptions& options, std::vector<ZoWeight> uses);
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;
  ~WeightRing();

  const SlotPlan& plan() const noexcept { return plan_; }
  bool is_resident(int use) const { return stays_.at(at(use)); }

  // ---- A pass ----
  void begin_step(std::span<const StepNoise> noises);  // One per direction; at least one.
  void begin_evaluation();                             // Both sides are theta, in one copy.
  // Returns the use's elements for work enqueued on `compute` from now on, until release().
  const void* acquire(int use, int direction, Side side, StreamRef compute);
  // Call when both halves have enqueued their readers, on `compute` or before it.
  void release(int use, int direction, StreamRef compute);
  void commit(ZoUpdates updates);               // Ends the pass; later passes are at these updates,
  void finish();                                // or at the same as this one.
  void check_ends(const char* function) const;  // Throws their common errors.
  // Between passes: brings every weight in host memory to the last step, and stops all writes
  // there.
  void flush();

  // ---- A snapshot of the masters ----
  void copy_residents_back();  // Between passes; starts it like flush(), but only for them.
  // Brings streamed weights, where nothing else has, to the last step in host memory. Also allowed
  // within a pass while nothing is acquired.
  void catch_up();
  void check_lanes() const { has_key(); }  // Throws the exception of a lane.

  // ---- Numbers ----
  EngineUse take_use() { return lanes_.take_use(); }
  std::uint64_t take_disk_read() noexcept { return hops_.take_disk_read(); }  // Since last time.
  Trace& trace() noexcept { return lanes_.trace(); }
  Budget& budget() noexcept { return lanes_.budget(); }

 private:
  struct Entry;  // A use on its way, with all its directions in one pass.
  using EntryPtr = std::shared_ptr<Entry>;

  struct Slot {
    std::byte* data = nullptr;
    Event free;
  };
  struct Pair {
    std::byte *plus = nullptr, *minus = nullptr;
    Event free;
  };
  struct Turn {  // A turn with a pair and a submitted perturbation.
    std::uint64_t position = 0;
    int use = 0;
    int direction = 0;
    int key = 0;
    Pair pair;
  };
  struct Ring {  // For one size class.
    std::vector<int> uses;
    std::size_t next = 0;          // Index in `uses` of the next one to submit,
    bool next_pass = true;         // in the pass after the current one.
    std::deque<EntryPtr> entries;  // With turns that have no pair; in order.
    std::size_t most_entries = 0;
    std::deque<Slot> staging, arrivals;
    std::deque<Pair> pairs;
  };
  // A read, an arrival, a step and a few directions each, for three passes: the device's, the
  // caller's, and the one after.
  static constexpr int kKeysOfUse = 15;

  static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  int use_count() const noexcept { return static_cast<int>(uses_.size()); }
  void cut_slots();
  Ring& ring_of(int use) { return rings_[at(plan_.class_of[at(use)])]; }
  void check_use(const char* function, int use) const;

  void begin(std::span<const StepNoise> noises);
  void end(const char* function);
  void fill();  // Submits what needs only lanes, source and device.
  bool fetch_next(Ring& ring);
  void move_on(Ring& ring);  // Gives entries arrival slots, and turns pairs.
  void give_arrivals(Ring& ring);
  EntryPtr next_entry(const Ring& ring) const;  // Its turn gets the next pair, if known.
  void submit_read(const EntryPtr& entry);
  void submit_copy(const EntryPtr& entry);
  void submit_perturb(const EntryPtr& entry, const Turn& turn);
  void seek(std::uint64_t position);
  void drop_turn();  // Drops the front of ahead_; waits for its running work.
  void retire(Ring& ring, const EntryPtr& entry);  // Its last turn has a pair, or needs none.
  bool has_key() const;                            // A key without work in the lanes.
  int take_key();
  Payload payload_of(int use, bool next_pass, std::uint64_t place);  // Without hops.
  std::uint64_t position(int use, int direction) const;              // In the current pass.

  // ---- Steps written into weights ----
  struct Written {  // By first use of a storage.
    std::size_t master = 0;
    std::uint64_t step = 0;  // Of host memory, or of its resident place once written.
    Event is_written;
    std::vector<Event> readers;  // Readers of memory that will be overwritten.
  };
  void know_masters();
  bool is_written(int use) const noexcept {
    return masters_ != nullptr && uses_[at(use)].source < 0;
  }
  Written& written(int use) { return written_.at(first_use_[at(use)]); }
  static void read_by(Written& storage, Event reader);
  bool bring_up(const EntryPtr& entry);  // False: no key is free.
  void bring_up_resident(int use, const std::shared_ptr<const WrittenSteps>& steps, int key);
  void bring_up_arrival(const EntryPtr& entry, int key);
  LaneId perturb_lane(std::uint64_t number) const;

  int first_direction(int use, std::uint64_t from) const;

  std::vector<ZoWeight> uses_;
  HostMasters* masters_;
  bool reads_change_;
  int perturb_lanes_;
  std::vector<int> first_use_;  // By use: the first one of the same storage.
  std::vector<bool> stays_;     // By use: it is resident.
  TurnOrder order_;
  SlotPlan plan_;
  EngineLanes lanes_;
  RingHops hops_;
  Buffer slots_;
  ResidentWeights residents_;
  Buffer staging_;
  std::vector<Ring> rings_;

  std::map<int, Written> written_;  // Empty without masters.
  std::shared_ptr<const ZoUpdates> updates_;
  std::shared_ptr<RingPass> pass_;  // The current pass; null between passes.
  std::shared_ptr<RingPass> next_;  // The pass after it.
  std::uint64_t begun_ = 0;         // Number of passes.
  std::array<Event, 2> ended_;      // The device has finished the last pass but one; the last one.
  std::uint64_t rewinds_ = 0;
  std::uint64_t from_ = 0;              // Earlier turns have been acquired or skipped.
  std::deque<Turn> ahead_;              // Not acquired yet; in order.
  std::map<std::uint64_t, Turn> held_;  // By position: acquired, not released.
  int next_key_ = 0;
  ComputingStream compute_;
};

}  // namespace sluiceway
