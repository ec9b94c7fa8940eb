// Brings streamed weights to the device block by block, in the order in which a step reads them:
// blocks forward, then the same blocks backward.
//
//   acquire(kForward, b) .. release     for each block b in order
//   acquire(kBackward, b) .. release    for each block b in reverse order
//   finish()
//
// A block's weights arrive in slots of a direct ring (weight_ring.h) while earlier blocks compute,
// `ahead` blocks before their turn; with 0 a fetch begins in the turn. The last 1 + `ahead` blocks
// stay in their slots between forward and backward, so a pass fetches them once and the others
// twice. Other orders work and are slower: a forward without a backward, a block that is skipped or
// run twice. begin() starts a pass, and the first acquire() does so if nobody else has; so does a
// forward after a backward, while no block is acquired. Between finish() and the next pass nothing
// is read, since a step then changes weights.
//
// Thread safety: one thread at a time calls.
// Lifetime:      what `reader` uses, and every stream passed in, outlive it; its destructor waits
//                for reads in flight.
// Errors:        those of WeightRing.
// Cost:          device: slots for 1 + `ahead` blocks, and room for a part of a weight that is not
//                stored as the model has it, which is unpacked there. Pinned tier: a few parts of
//                weights, which do not grow with the blocks (SlotPlan::kPartsBytes).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engine/engine_lanes.h"
#include "runtime/engine/offload/chunk_plan.h"
#include "runtime/engine/offload/state_store.h"
#include "runtime/engine/stream/ring_client.h"
#include "runtime/engine/stream/weight_ring.h"

namespace sluiceway {

class WeightFetch final : private WeightSource {
 public:
  struct Reader {
    // Reads whole chunks of the weight after its last update, which it waits for, as they are
    // stored: those that fill `into`, from byte `first` on.
    std::function<void(int tensor, std::uint64_t first, std::span<std::byte> into, Done done)> read;
    bool is_disk = true;
    std::int64_t chunk_elems = ChunkPlan::kChunkElems;
  };
  static constexpr std::uint64_t kPartBytes = std::uint64_t{8} << 20;  // Of a read, at most.
  enum class Phase : std::uint8_t { kForward, kBackward };

  struct Footprint {
    std::uint64_t device = 0, pinned = 0;  // Bytes that an object takes of the tiers.
    std::uint64_t pass = 0;                // Bytes that it fetches for a forward and its backward,
    std::uint64_t forward = 0;             // and for the forward.
  };
  static Footprint footprint(std::span<const TensorSpec> tensors,
                             const std::vector<std::vector<int>>& blocks, int ahead,
                             std::int64_t chunk_elems);

  // `blocks`: numbers of their tensors. InvalidArgument: no block, or one without tensors.
  WeightFetch(const EngineLanes::Options& lanes, Reader reader, std::span<const TensorSpec> tensors,
              const std::vector<std::vector<int>>& blocks, int ahead);

  void begin();  // Starts to fetch the first blocks; in a pass it does nothing.
  // Returns a block's weights, in the order of its tensors, for work enqueued on `compute` from now
  // on, until release().
  std::vector<const void*> acquire(Phase phase, int block, StreamRef compute);
  // Call when all readers have been enqueued on `compute`, or before it.
  void release(Phase phase, int block, StreamRef compute);
  // Ends the pass, if there is one. Afterwards nothing is read. InvalidArgument: a block is
  // acquired.
  void finish();

  const std::vector<int>& tensors_of(int block) const {
    return blocks_.at(static_cast<std::size_t>(block));
  }
  double take_stall_seconds() { return ring_.take_use().stall_seconds; }

 private:
  std::uint64_t read_bytes(std::size_t weight) const override;
  bool is_disk() const override { return reader_.is_disk; }
  void read(std::size_t weight, std::span<std::byte> into, Done done) override;
  std::uint64_t part_bytes(std::size_t weight) const override;
  void read_part(std::size_t weight, std::uint64_t first, std::span<std::byte> into,
                 Done done) override;
  int count() const noexcept { return static_cast<int>(blocks_.size()); }
  bool stays(int block) const noexcept { return block >= count() - staying_; }
  int first_use(Phase phase, int block) const;
  void release_uses(int first, std::size_t count, StreamRef compute);
  void release_kept();

  Reader reader_;
  std::vector<StoredWeight> stored_;  // By tensor.
  std::vector<std::vector<int>> blocks_;
  std::vector<int> first_;         // By block: its first use in a forward; and the count of all.
  int staying_;                    // The last blocks, which stay in their slots after a forward.
  std::map<int, StreamRef> kept_;  // Those that wait there, by the stream that read them.
  std::shared_ptr<const PassWork> unpacks_;
  bool in_pass_ = false;
  bool turned_ = false;          // The backward of this pass has begun.
  std::map<int, int> acquired_;  // How often, by the first use of the block.
  WeightRing ring_;
};

}  // namespace sluiceway
