#include "runtime/engine/offload/weight_fetch.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "runtime/engine/stream/weight_places.h"

namespace sluiceway {
namespace {

// Unpacks the parts of weights that are not stored as the model has them.
class Unpacks final : public PassWork {
 public:
  explicit Unpacks(std::span<const StoredWeight> stored) : stored_(stored) {}

  void make_copies(const StreamedWeight& weight, int, const TurnCopies& copies,
                   StreamRef stream) const override {
    stored_[static_cast<std::size_t>(weight.source)].unpack(
        copies.first_byte, copies.weight, {copies.first, weight.copy_bytes()}, stream);
  }

 private:
  std::span<const StoredWeight> stored_;
};

std::vector<StoredWeight> stored_of(std::span<const TensorSpec> tensors, std::int64_t chunk_elems) {
  std::vector<StoredWeight> stored;
  stored.reserve(tensors.size());
  for (const TensorSpec& tensor : tensors) stored.push_back(tensor.stored_weight(chunk_elems));
  return stored;
}

std::vector<int> first_uses_of(const std::vector<std::vector<int>>& blocks) {
  SLUICEWAY_CHECK(!blocks.empty(), "WeightFetch: 0 blocks, expected at least one");
  std::vector<int> first = {0};
  for (const std::vector<int>& tensors : blocks) {
    SLUICEWAY_CHECK(!tensors.empty(), "WeightFetch: block ", first.size() - 1,
                    " has no streamed tensor, expected at least one");
    first.push_back(first.back() + static_cast<int>(tensors.size()));
  }
  return first;
}

int staying_blocks(const std::vector<std::vector<int>>& blocks, int ahead) {
  return static_cast<int>(std::min(blocks.size(), static_cast<std::size_t>(1 + ahead)));
}

// Forward block by block, then backward those that have not stayed in their slots; a block has the
// same order of tensors both times.
std::vector<StreamedWeight> uses_of(std::span<const TensorSpec> tensors,
                                    const std::vector<std::vector<int>>& blocks, int ahead) {
  std::vector<StreamedWeight> uses;
  const auto add = [&](const std::vector<int>& block, int module) {
    for (const int index : block) {
      const TensorSpec& tensor = tensors[static_cast<std::size_t>(index)];
      SLUICEWAY_CHECK(tensor.streamed, "WeightFetch: ", tensor.name,
                      " is not streamed, expected one whose weight is in the store");
      StreamedWeight& use = uses.emplace_back();
      use.name = tensor.name;
      use.elements = tensor.elems();
      use.form = stored_form(tensor.how_streamed(), tensor.dtype);
      if (tensor.fp8) use.computed = tensor.dtype;
      use.module = module;
      use.source = index;
    }
  };
  int module = 0;
  for (auto block = blocks.begin(); block != blocks.end(); ++block) add(*block, module++);
  const auto again = blocks.rbegin() + staying_blocks(blocks, ahead);
  for (auto block = again; block != blocks.rend(); ++block) add(*block, module++);
  return uses;
}

// The largest part that is unpacked on the device.
std::uint64_t scratch_bytes_of(std::span<const StoredWeight> stored,
                               const std::vector<std::vector<int>>& blocks) {
  std::uint64_t most = 0;
  for (const std::vector<int>& block : blocks) {
    for (const int index : block) {
      const StoredWeight& weight = stored[static_cast<std::size_t>(index)];
      if (weight.is_packed()) most = std::max(most, weight.part_bytes(WeightFetch::kPartBytes));
    }
  }
  return most;
}

RingDepth depth_of(int ahead) {
  SLUICEWAY_CHECK(ahead >= 0, "WeightFetch: ", ahead, " blocks ahead, expected 0 or more");
  RingDepth depth;
  depth.pairs = 1 + ahead;
  depth.staging = 1;
  depth.direct = true;
  return depth;
}

WeightRingOptions ring_options(const EngineLanes::Options& lanes, WeightSource& source, int ahead,
                               std::uint64_t scratch_bytes) {
  WeightRingOptions options(lanes.device);
  options.lanes = lanes;
  options.depth = depth_of(ahead);
  options.source = &source;
  options.reads_change = true;
  options.reads_between = false;
  options.scratch_bytes = scratch_bytes;
  return options;
}

}  // namespace

WeightFetch::Footprint WeightFetch::footprint(std::span<const TensorSpec> tensors,
                                              const std::vector<std::vector<int>>& blocks,
                                              int ahead, std::int64_t chunk_elems) {
  const std::vector<StreamedWeight> uses = uses_of(tensors, blocks, ahead);
  const std::vector<StoredWeight> stored = stored_of(tensors, chunk_elems);
  std::vector<ReadSize> reads;
  reads.reserve(uses.size());
  Footprint footprint;
  for (const StreamedWeight& use : uses) {
    const StoredWeight& weight = stored[static_cast<std::size_t>(use.source)];
    reads.push_back({weight.bytes(), weight.part_bytes(kPartBytes)});
    const std::uint64_t bytes = use.crossing_bytes(weight.bytes());
    footprint.pass += bytes;
    if (use.module < static_cast<int>(blocks.size())) footprint.forward += bytes;
  }
  const SlotPlan slots = plan_slots(uses, std::vector<bool>(uses.size()), reads, depth_of(ahead));
  footprint.device = slots.bytes + scratch_bytes_of(stored, blocks);
  footprint.pinned = slots.staging_bytes;
  return footprint;
}

WeightFetch::WeightFetch(const EngineLanes::Options& lanes, Reader reader,
                         std::span<const TensorSpec> tensors,
                         const std::vector<std::vector<int>>& blocks, int ahead)
    : reader_(std::move(reader)),
      stored_(stored_of(tensors, reader_.chunk_elems)),
      blocks_(blocks),
      first_(first_uses_of(blocks_)),
      staying_(staying_blocks(blocks_, ahead)),
      unpacks_(std::make_shared<Unpacks>(stored_)),
      ring_(ring_options(lanes, *this, ahead, scratch_bytes_of(stored_, blocks_)),
            uses_of(tensors, blocks_, ahead)) {}

int WeightFetch::first_use(Phase phase, int block) const {
  SLUICEWAY_CHECK(block >= 0 && block < count(), "WeightFetch: block ", block, ", expected 0 to ",
                  count() - 1);
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  if (phase == Phase::kForward || stays(block)) return first_[at(block)];
  return first_.back() + first_[at(count() - staying_)] - first_[at(block + 1)];
}

std::vector<const void*> WeightFetch::acquire(Phase phase, int block, StreamRef compute) {
  const int first = first_use(phase, block);
  if (phase == Phase::kForward && turned_ && acquired_.empty()) finish();
  begin();
  turned_ = turned_ || phase == Phase::kBackward;
  // Others need the slots, also a block that runs inside of another one.
  const bool is_here = kept_.contains(block) || acquired_.contains(first);
  if (!is_here && (!stays(block) || !acquired_.empty())) release_kept();
  std::vector<const void*> weights;
  try {
    while (weights.size() < tensors_of(block).size()) {
      const int use = first + static_cast<int>(weights.size());
      weights.push_back(ring_.acquire(use, 0, 0, compute));
    }
  } catch (...) {
    if (!is_here) release_uses(first, weights.size(), compute);
    throw;
  }
  kept_.erase(block);
  ++acquired_[first];
  return weights;
}

void WeightFetch::release(Phase phase, int block, StreamRef compute) {
  const int first = first_use(phase, block);
  const auto acquired = acquired_.find(first);
  SLUICEWAY_CHECK(acquired != acquired_.end(), "WeightFetch: block ", block,
                  " is not acquired; call acquire() first");
  if (--acquired->second > 0) return;
  acquired_.erase(acquired);
  if (phase == Phase::kForward && stays(block)) {
    kept_.emplace(block, compute);
  } else {
    release_uses(first, tensors_of(block).size(), compute);
  }
}

void WeightFetch::release_uses(int first, std::size_t count, StreamRef compute) {
  for (std::size_t i = 0; i < count; ++i) {
    ring_.release(first + static_cast<int>(i), 0, compute);
  }
}

void WeightFetch::release_kept() {
  while (!kept_.empty()) {
    const auto [block, compute] = *kept_.begin();
    kept_.erase(kept_.begin());
    release_uses(first_[static_cast<std::size_t>(block)], tensors_of(block).size(), compute);
  }
}

void WeightFetch::begin() {
  if (in_pass_) return;
  ring_.begin(unpacks_);
  in_pass_ = true;
}

void WeightFetch::finish() {
  if (!in_pass_) return;
  release_kept();
  ring_.finish();
  in_pass_ = turned_ = false;
}

std::uint64_t WeightFetch::read_bytes(std::size_t weight) const { return stored_[weight].bytes(); }

void WeightFetch::read(std::size_t weight, std::span<std::byte> into, Done done) {
  read_part(weight, 0, into, std::move(done));
}

std::uint64_t WeightFetch::part_bytes(std::size_t weight) const {
  return stored_[weight].part_bytes(kPartBytes);
}

void WeightFetch::read_part(std::size_t weight, std::uint64_t first, std::span<std::byte> into,
                            Done done) {
  reader_.read(static_cast<int>(weight), first, into, std::move(done));
}

}  // namespace sluiceway
