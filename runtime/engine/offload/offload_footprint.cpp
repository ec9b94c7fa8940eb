#include "runtime/engine/offload/offload_footprint.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/device/host_pages.h"
#include "runtime/engine/offload/gradient_exit.h"
#include "runtime/engine/offload/gradient_spill.h"
#include "runtime/engine/offload/weight_park.h"
#include "runtime/store/chunk_store.h"

namespace sluiceway {
namespace {

constexpr std::size_t kRingChunks = 16;       // Chunks on their way at once: 256 MiB, in place 32.
constexpr std::size_t kLeastChunks = 2;       // One comes while another goes.
constexpr std::uint64_t kCatalogueRow = 256;  // Bytes of a tensor in a catalogue, beside its name.

// What the engine's plan and types are made of, one of each per tensor.
struct Lists {
  std::vector<std::int64_t> elems;
  std::vector<DType> dtypes;
  std::vector<Streamed> streamed;
  std::vector<std::uint8_t> away;

  explicit Lists(std::span<const TensorSpec> tensors) {
    for (const TensorSpec& tensor : tensors) {
      elems.push_back(tensor.elems());
      dtypes.push_back(tensor.dtype);
      streamed.push_back(tensor.how_streamed());
      away.push_back(tensor.is_away() ? 1 : 0);
    }
  }
};

// Adds what the stores of a plan take, and how bytes are divided between them.
void add_stores(OffloadFootprint& found, const ChunkPlan& plan, const StateStream::Types& types,
                std::uint32_t slots, std::uint32_t extents) {
  const Layout layout = new_layout(state_contents(plan, types, slots, extents), {1});
  found.store_bytes = layout.drives.front().bytes;
  found.table_bytes = ChunkStore::table_bytes(layout);
  if (const Contents others = overflow_contents(plan, types, extents); !others.regions.empty()) {
    const Layout beside = new_layout(others, {1});
    found.overflow_bytes = beside.drives.front().bytes;
    found.table_bytes += ChunkStore::table_bytes(beside);
  }
  const StatePlaces places = StateStream::places_of(plan, types);
  const ChunkPlaces &here = places.all_in_place(), &there = places.all_on_drives();
  const auto bytes_of = [&](const ChunkPlaces& of) {
    return of.state_bytes + of.weight_bytes + extents * of.elems * size_bytes(types.gradient);
  };
  const std::uint64_t all = std::max<std::uint64_t>(1, bytes_of(here) + bytes_of(there));
  found.stored_elems = static_cast<std::int64_t>(here.elems + there.elems);
  found.drive_share = static_cast<double>(bytes_of(there)) / static_cast<double>(all);
}

void add_states(OffloadFootprint& found, const ChunkPlan& plan, const StateStream::Types& types) {
  for (const PlannedChunk& chunk : plan.chunks()) {
    const StateForm form(types.codec, chunk, types.weights, types.streamed);
    if (form.is_frozen()) continue;
    const std::size_t copied = form.is_copy() ? form.weight_bytes() : 0;
    found.copied_bytes += copied;
    found.state_bytes += form.bytes() - copied;
  }
}

}  // namespace

std::size_t offload_ring_bytes(const ChunkPlan& plan, StateStream::Types types, int micro_batches,
                               std::uint64_t limit, std::uint64_t landing) {
  const std::size_t chunk = StateStream::ring_bytes(plan, types, std::max(1, micro_batches));
  const auto ring_of = [chunk](std::size_t chunks) {  // The ring has whole pages.
    return round_up(chunks * chunk, kHugePageBytes);
  };
  const std::size_t most = ring_of(std::min(kRingChunks, plan.chunks().size() + 1));
  const std::size_t least = ring_of(std::min(kLeastChunks, plan.chunks().size()));
  const std::uint64_t shared = GradientSpill::shared_bytes(plan, types.gradient) + landing;
  if (limit < shared + least) {
    throw OutOfMemory(concat("OffloadEngine: the pinned tier is limited to ", format_bytes(limit),
                             ", expected at least ", format_bytes(shared + least), " for ",
                             kLeastChunks,
                             " chunks on their way and the gradients of small tensors; raise "
                             "budget.pinned, or use smaller chunks"));
  }
  const std::uint64_t room = (limit - shared) / kHugePageBytes * kHugePageBytes;
  return static_cast<std::size_t>(std::min<std::uint64_t>(most, room));
}

Contents state_contents(const ChunkPlan& plan, const StateStream::Types& types, std::uint32_t slots,
                        std::uint32_t micro_batches) {
  Contents contents;
  contents.regions = StateStream::regions(plan, types, slots, micro_batches);
  if (slots == 1) contents.spares_per_drive = 0;  // Memory does not fail chunk by chunk.
  return contents;
}

Contents overflow_contents(const ChunkPlan& plan, const StateStream::Types& types,
                           std::uint32_t micro_batches) {
  Contents contents;
  contents.regions = StateStream::overflow_regions(plan, types, micro_batches);
  return contents;
}

InPlace in_place_within(std::uint64_t limit, std::span<const TensorSpec> tensors,
                        const ChunkPlan& plan, StateStream::Types types,
                        std::uint32_t micro_batches, std::uint64_t core_bytes) {
  InPlace room{InPlace::kAll, static_cast<int>(micro_batches)};
  if (limit == Budget::kUnlimited) return room;
  std::uint64_t catalogue = 0;  // At most.
  for (const TensorSpec& tensor : tensors) catalogue += 2 * tensor.name.size() + kCatalogueRow;
  const auto layout_of = [catalogue](Contents contents) {
    contents.catalogue.resize(catalogue);
    return new_layout(contents, {1});
  };
  types.in_place = room;
  const Layout whole = layout_of(state_contents(plan, types, 1, micro_batches));
  if (core_bytes + whole.drives.front().bytes + ChunkStore::table_bytes(whole) <= limit)
    return room;
  types.in_place = {1, room.extents};  // As if all chunks were on drives.
  const Layout here = layout_of(state_contents(plan, types, 1, micro_batches));
  const Layout there = layout_of(overflow_contents(plan, types, micro_batches));
  const std::uint64_t rest = core_bytes + here.drives.front().bytes +
                             ChunkStore::table_bytes(here) + ChunkStore::table_bytes(there);
  room.bytes = std::max<std::uint64_t>(1, limit - std::min(limit, rest));
  return room;
}

OffloadFootprint offload_footprint(std::span<const TensorSpec> tensors,
                                   const FootprintRequest& request) {
  const auto& [gradient, chunk_elems, micro_batches, slots, in_place_limit, pinned_limit, cores,
               policy, park_room, device, codec] = request;
  const auto [elems, dtypes, streamed, away] = Lists(tensors);
  const ChunkPlan plan(elems, chunk_elems);
  const CoreFootprint compressed = core_footprint(tensors, plan, cores, policy, device);
  const std::uint64_t landing = compressed.landing_bytes + GradientExit::pinned_bytes(device);
  StateStream::Types types{gradient, dtypes, {}, may_feed(cores, policy), !device.is_host(), codec};
  types.streamed = streamed;
  const auto extents = static_cast<std::uint32_t>(micro_batches);
  if (slots == 1) {
    types.in_place =
        in_place_within(in_place_limit, tensors, plan, types, extents, compressed.host_bytes);
  }
  OffloadFootprint found;
  found.cores = compressed;
  found.pinned_bytes = offload_ring_bytes(plan, types, micro_batches, pinned_limit, landing) +
                       GradientSpill::shared_bytes(plan, gradient) + landing;
  found.exit_bytes = GradientExit::device_bytes(plan, gradient, device);
  add_stores(found, plan, types, slots, extents);
  add_states(found, plan, types);
  const bool early = policy == UpdatePolicy::kSpeculative;
  const WeightPark::Fit parked = WeightPark::fit(plan, dtypes, away, early ? park_room : 0);
  found.parked_bytes = parked.bytes;
  for (std::size_t c = parked.chunks; early && c < plan.chunks().size(); ++c) {
    const int tensor = plan.chunks()[c].pieces.front().tensor;
    if (away[static_cast<std::size_t>(tensor)] != 0) continue;
    const bool is_whole_once = micro_batches == 1;
    if (is_whole_once || crosses_as_core(tensors[static_cast<std::size_t>(tensor)], tensor, plan)) {
      found.reread_bytes += StateForm(codec, plan.chunks()[c], dtypes).part_bytes();
    }
  }
  return found;
}

KeptWeights::Room kept_room(std::span<const TensorSpec> tensors,
                            const std::vector<std::vector<int>>& blocks, int ahead,
                            std::int64_t chunk_elems, StateCodec codec) {
  const Lists lists(tensors);
  StateStream::Types types;
  types.weights = lists.dtypes;
  types.streamed = lists.streamed;
  types.codec = codec;
  return KeptWeights::room_for(ChunkPlan(lists.elems, chunk_elems), types, blocks,
                               KeptWeights::blocks(ahead));
}

}  // namespace sluiceway
