// Streams weights through a ring of device slots to the turns of a pass, two copies each.
//
//   disk     W of use k    -> staging slot    for weights of a source, when the slot is free
//   h2d      W of use k    -> arrival slot    when the slot is free, one pass ahead at most
//   copies   arrival slot  -> pair of slots   PassWork::make_copies(), when a pair is free
//   compute  acquire() .. release()           reads the pair
//
// In a direct ring (RingDepth::direct) a turn reads one copy, as it arrived: the weight crosses
// into the slot of its turn. It is read and crosses in parts, each a payload of its own, through
// staging slots that all weights share. A part of a weight whose turns read another type
// (StreamedWeight::computed) crosses into scratch memory, and make_copies() of the pass unpacks it
// from there in the lane of the link. A pass then has one round, all weights have a source, and
// none is resident.
//
// With written weights, steps are also written into them:
//
//   copies   arrival slot, or resident  <- PassWork::write_steps()   before its first turn
//   down     arrival slot  -> host memory     for streamed ones, while the pass runs
//
// One pass: begin(), then acquire(), acquire(), release() for each turn, then finish(). A turn is a
// use in one round; the work of a pass says how many rounds it has. Turns go module by module,
// round by round within a module, and use by use within that. So one arrival serves all rounds, and
// many rounds need no more slots than one. A pass that reads weights forward and then backward
// lists their uses in that order, twice.
//
// The first weights of the next pass cross the link before finish(). Their copies are made from
// begin() on, which brings the work. Copies of resident weights are made from their place on the
// device into the same pairs. Without written weights nothing crosses from device to host.
//
// Turns may be taken in another order, more slowly: a skipped turn gives its slots back, and
// acquire() of an earlier turn reloads it and continues from there. The bits do not depend on the
// order, nor on depths, lanes or the resident set.
//
// Each read, arrival and making of copies is a payload of its own. It is submitted once it needs
// only the lanes, the source and the device. So no payload holds a lane while it waits for the
// caller, whatever order the caller uses, also after a failure.
// Invariants, which the tests name:
//   R1  An arrival slot is written when the copies of the previous use in that slot have been made
//       in every round.
//   R2  A pair is written behind the event that release() recorded.
//   R3  A payload that waits in a lane waits only for payloads submitted earlier. Where these may
//       come later in the same lane, the wait holds no thread: no deadlock.
//   R4  A turn's copies are made by the work of its own pass.
//   R5  A staging slot is read into when its previous content has crossed the link.
//   R6  A weight in host memory is written when every copy submitted before has arrived, and copied
//       when every write submitted before is done.
//   R7  Missing steps are written into each copy, even if other copies of its storage have them:
//       the same bits; the first copy goes back. So a tied weight, or one that crossed before its
//       step was known, receives no step twice.
//   R8  While a reader needs host memory, a weight that goes back waits in its slot for the reader,
//       and the pass does not wait (WrittenWeights::may_be_written()), except for a further use of
//       a tied weight, which crosses when the first has gone back.
//
// On a CUDA device the caller is a pass ahead at most: begin() waits until the device has finished
// the last pass but one. Any call may wait while the lanes have kKeysOfUse payloads for each use.
// acquire() waits until the making of the turn's copies has been enqueued, so the caller is as many
// turns ahead of the device as there are pairs. Work that reads a pair on a stream other than the
// last one that acquired it must come before the stream passed to release().
//
// Thread safety: one thread at a time calls; threads in lock step count as one.
// Lifetime:      host memory of the weights, their source and the computing streams outlive the
//                ring; its destructor waits for reads in flight.
// Errors:        OutOfMemory, with both byte counts: the ring does not fit. InvalidArgument: a call
//                out of place; nothing changed. The next call, and each one after it, rethrows an
//                exception of a lane, with lane and weight named.
// Cost:          a pass reads each streamed use once and moves it once over the link, for any
//                number of rounds; written weights that are streamed also return once, if a step
//                was made since.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/computing_stream.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/stream/ring_client.h"
#include "runtime/engine/stream/ring_hops.h"
#include "runtime/engine/stream/slot_plan.h"
#include "runtime/engine/stream/weight_places.h"
#include "runtime/memory/buffer.h"

namespace sluiceway {

struct WeightRingOptions {
  explicit WeightRingOptions(DeviceId device) noexcept : lanes(device) {}

  static constexpr std::uint64_t kWhatIsLeft = UINT64_MAX;

  EngineLanes::Options lanes;
  RingDepth depth;
  std::uint64_t resident_room = 0;    // Bytes for weights that may stay, beside those that must.
  WeightSource* source = nullptr;     // For weights outside host memory.
  bool reads_change = false;          // Between passes, so no pass reads for the next one;
  bool reads_between = true;          // and after finish() either, if they still change then.
  WrittenWeights* written = nullptr;  // Receives steps, in host memory; null: only reads.
  int reads = 4;                      // Concurrent reads of the source.
  int copy_lanes = 1;
  std::string copy_lane = "copies";  // Its name in a trace.
  std::size_t scratch_bytes = 0;     // Device memory that each of these lanes lends to the work;
                                     // in a direct ring of a part, if one is unpacked.
  int device_cpu = -1;
  int lane_cpu = -1;
  // Called in a hop before its work, so that tests can wait or throw there.
  std::function<void(LaneId lane, int use)> before_hop = {};
};

class WeightRing {
 public:
  WeightRing(const WeightRingOptions& options, std::vector<StreamedWeight> uses);
  WeightRing(const WeightRing&) = delete;
  WeightRing& operator=(const WeightRing&) = delete;
  ~WeightRing();

  const SlotPlan& plan() const noexcept { return plan_; }
  bool is_resident(int use) const { return stays_.at(at(use)); }

  // ---- A pass ----
  void begin(std::shared_ptr<const PassWork> work);
  // Returns the use's elements for work enqueued on `compute` from now on, until release(). `copy`
  // is 0 or 1; work without pairs has one copy for both.
  const void* acquire(int use, int round, int copy, StreamRef compute);
  // Call when all readers have been enqueued, on `compute` or before it.
  void release(int use, int round, StreamRef compute);
  void finish();  // Without `reads_between`, returns when nothing is read any more.
  void check_ends(const char* function) const;  // Throws the errors of finish().

  // ---- Written weights ----
  // Between passes: brings every weight in host memory to work->next_step() and stops all writes
  // there.
  void flush(const std::shared_ptr<const PassWork>& work);
  void copy_residents_back(const std::shared_ptr<const PassWork>& work);  // Starts that for them.
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
  struct Entry;  // A use on its way, with all its rounds in one pass.
  using EntryPtr = std::shared_ptr<Entry>;

  struct Slot {
    std::byte* data = nullptr;
    Event free;
  };
  struct Pair {
    std::byte *first = nullptr, *second = nullptr;
    Event free;
  };
  struct Turn {  // A turn with a pair, whose copies are being made.
    std::uint64_t position = 0;
    int use = 0;
    int round = 0;
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
  // A read, an arrival, a step and a few rounds each, for three passes: the device's, the caller's,
  // and the one after.
  static constexpr int kKeysOfUse = 15;

  static std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }
  int use_count() const noexcept { return static_cast<int>(uses_.size()); }
  std::vector<std::byte*> bring_residents();
  void cut_slots();
  Ring& ring_of(int use) { return rings_[at(plan_.class_of[at(use)])]; }
  void check_use(const char* function, int use) const;

  int rounds() const { return pass_->work->rounds(); }
  void fill();  // Submits what needs only lanes, source and device.
  bool fetch_next(Ring& ring);
  void move_on(Ring& ring);  // Gives entries arrival slots, and turns pairs.
  void give_arrivals(Ring& ring);
  EntryPtr next_entry(const Ring& ring) const;  // Its turn gets the next pair, if known.
  void submit_read(const EntryPtr& entry);
  void submit_arrival(const EntryPtr& entry);
  void submit_copies(const EntryPtr& entry, const Turn& turn);
  void submit_direct(const EntryPtr& entry, const Turn& turn);
  void seek(std::uint64_t position);
  void drop_turn();  // Drops the front of ahead_; waits for its running work.
  void retire(Ring& ring,
              const EntryPtr& entry);  // Its last turn has a pair, or needs none.
  bool has_key() const;                // A key without work in the lanes.
  int take_key();
  Payload payload_of(int use, bool next_pass,
                     std::uint64_t place);           // Without hops.
  std::uint64_t position(int use, int round) const;  // In the current pass.

  // ---- Steps written into weights ----
  struct Written {           // By first use of a storage.
    std::size_t index = 0;   // In the written weights.
    std::uint64_t step = 0;  // Of host memory, or of its resident place once written.
    Event is_written;
    std::vector<Event> readers;  // Readers of memory that will be overwritten.
  };
  void know_written();
  bool is_written(int use) const noexcept {
    return written_weights_ != nullptr && uses_[at(use)].source < 0;
  }
  Written& written(int use) { return written_.at(first_use_[at(use)]); }
  static void read_by(Written& storage, Event reader);
  bool bring_up(const EntryPtr& entry);  // False: no key is free.
  void bring_up_resident(int use, const std::shared_ptr<const PassWork>& work, int key);
  void bring_up_arrival(const EntryPtr& entry, int key);
  LaneId copy_lane(std::uint64_t number) const;

  int first_round(int use, std::uint64_t from) const;

  std::vector<StreamedWeight> uses_;
  WrittenWeights* written_weights_;
  bool reads_change_, reads_between_;
  bool direct_;
  int copy_lanes_;
  std::vector<int> first_use_;  // By use: the first one of the same storage.
  std::vector<bool> stays_;     // By use: it is resident.
  TurnOrder order_;
  SlotPlan plan_;
  EngineLanes lanes_;
  RingHops hops_;
  Buffer slots_;
  std::vector<Buffer> resident_buffers_;
  std::vector<std::byte*> residents_;  // By use: its place on the device; null: it does not stay.
  Buffer staging_;
  std::deque<Slot> parts_;  // In a direct ring: staging slots, the one that is free first in front.
  std::vector<Ring> rings_;

  std::map<int, Written> written_;  // Empty if this ring only reads.
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
