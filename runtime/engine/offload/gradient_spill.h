// Moves whole gradients off the device as they arrive, in their stored type, and writes them to
// extents.
//
//   d2h    copies a piece off the device; the pass that writes the copy scans and squares it
//   spill  writes a chunk's extent
//
// The chunks of a large tensor are written one by one, each from a lease of the ring. Small tensors
// gather in a buffer of their shared chunk, which is written at the end of a backward. Each
// backward of a chunk has an extent of its own: no extent is read to be added to; several are
// summed when they are used. If there are more extents than the store has room for, the store
// grows. A gradient that Speculation takes goes into its update, and also to its extent where
// extents are kept.
//
// Thread safety: calls from one thread; payloads run in the lanes.
// Lifetime:      everything passed to the constructor outlives the payloads.
// Errors:        a hop ends with the error of its request. IoError: the store cannot grow; nothing
//                of the gradient was taken.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/view.h"
#include "kernels/overflow_scan.h"
#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/offload/chunk_groups.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/gradient_exit.h"
#include "runtime/engine/offload/speculation.h"
#include "runtime/engine/offload/state_stream.h"
#include "runtime/memory/buffer.h"
#include "runtime/memory/pinned_pool.h"
#include "runtime/store/chunk_store.h"
#include "runtime/store/store_room.h"

namespace sluiceway {

class GradientSpill {
 public:
  // A store with extents, which grows when there are more than it has room for.
  struct Extents {
    ChunkStore& store;
    StoreRoom& room;
  };

  GradientSpill(EngineLanes& lanes, std::vector<Extents> stores, PinnedPool& ring,
                const ChunkPlan& plan, const ChunkGroups& groups, StateStream& stream,
                Speculation& speculation, GradientExit& exit, DType gradient);

  // Returns the bytes of the buffers of shared chunks, tier kPinned.
  static std::uint64_t shared_bytes(const ChunkPlan& plan, DType gradient);

  // Takes the gradient of a tensor, contiguous, which is complete after `there`. Holds `keep` until
  // the gradient has left the device. Waits while more than `room` bytes of gradients have not
  // left, so one that is larger has left when this returns.
  void add(int tensor, const AnyMatrix& g, const Event& there,
           const std::shared_ptr<const void>& keep, std::uint64_t room);
  void end_backward();  // Waits for gradients to leave; sends shared chunks.
  void
  wait_written();  // Extents are on the drive, and staged updates, for whoever reads them next.
  // Reads the extents of every tensor that has several, for scan(); call after end_backward().
  void scan_sums();
  // Returns whether a sum may exceed f32 although no addend does; only scan_sums() can tell.
  bool must_sum() const;

  int extents(int chunk) const { return chunks_.at(at(chunk)).extents; }
  // Returns the scan of the sum of a tensor's gradients. Before scan_sums(), sum_squares is NaN
  // where there are several.
  ScanResult scan(int tensor) const;
  void clear();  // Forgets every extent; no payload may be in the lanes.

 private:
  struct Chunk {
    int extents = 0;
    int summed = 0;                       // Number of extents in `sums`.
    std::vector<ScanResult> scans, sums;  // By piece: merged over extents; of their sum.
    // For a shared chunk: the extent being gathered.
    std::optional<Buffer> buffer;
    std::vector<bool> arrived;  // By piece; all false: the buffer holds nothing unwritten.
  };
  struct Source {  // A part of a gradient, on the device.
    std::span<const std::byte> bytes;
    DType dtype = DType::kF32;
    Event there;
    std::shared_ptr<const void> keep;
  };
  struct Waiting {
    int key = 0;
    std::uint64_t bytes = 0;
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  const PlannedChunk& planned(int chunk) const { return plan_.chunks()[at(chunk)]; }
  int key_of(int chunk) const { return groups_.spill(groups_.of_chunk(chunk)); }
  static bool is_dirty(const Chunk& chunk);
  void make_room(int chunk);
  void leave(const Source& from, std::span<std::byte> into, ScanResult& sum);
  void add_alone(int chunk, Source from);
  void add_shared(int chunk, std::size_t piece, Source from);
  std::vector<bool> gather(int chunk);
  void flush(int chunk);
  void end_gathering(int chunk);
  void submit(int chunk, std::vector<Hop> hops);

  EngineLanes& lanes_;
  std::vector<Extents> stores_;
  PinnedPool& ring_;
  const ChunkPlan& plan_;
  const ChunkGroups& groups_;
  StateStream& stream_;
  Speculation& speculation_;
  GradientExit& exit_;
  DType gradient_;
  std::vector<Chunk> chunks_;
  std::vector<int> backwards_;   // By tensor.
  std::deque<Waiting> waiting_;  // Gradients that may still be on the device.
  std::uint64_t waiting_bytes_ = 0;
};

}  // namespace sluiceway
