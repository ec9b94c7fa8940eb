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

constexpr std::size_t kRingChunks = 16;  // Chunks on their way at once: 256 MiB, in place 32.
constexpr std::size_t kLeastChunks = 2;  // One comes while another goes.

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

OffloadFootprint offload_footprint(std::span<const TensorSpec> tensors,
                                   const FootprintRequest& request) {
  const auto& [gradient, chunk_elems, micro_batches, slots, pinned_limit, cores, policy, park_room,
               device, codec] = request;
  std::vector<std::int64_t> elems;
  std::vector<DType> dtypes;
  std::vector<Streamed> streamed;
  std::vector<std::uint8_t> away;
  for (const TensorSpec& tensor : tensors) {
    elems.push_back(tensor.elems());
    dtypes.push_back(tensor.dtype);
    streamed.push_back(tensor.how_streamed());
    away.push_back(tensor.is_away() ? 1 : 0);
  }
  const ChunkPlan plan(elems, chunk_elems);
  const CoreFootprint compressed = core_footprint(tensors, plan, cores, policy, device);
  const std::uint64_t landing = compressed.landing_bytes + GradientExit::pinned_bytes(device);
  StateStream::Types types{gradient,          dtypes, slots == 1, may_feed(cores, policy),
                           !device.is_host(), codec};
  types.streamed = streamed;
  const Layout layout = new_layout(
      state_contents(plan, types, slots, static_cast<std::uint32_t>(micro_batches)), {1});
  const bool early = policy == UpdatePolicy::kSpeculative;
  const WeightPark::Fit parked = WeightPark::fit(plan, dtypes, away, early ? park_room : 0);
  std::uint64_t states = 0, copied = 0, reread = 0;
  for (const PlannedChunk& chunk : plan.chunks()) {
    const StateForm form(codec, chunk, dtypes, streamed);
    if (form.is_frozen()) continue;
    if (form.is_copy()) copied += form.weight_bytes();
    states += form.bytes() - (form.is_copy() ? form.weight_bytes() : 0);
  }
  for (std::size_t c = parked.chunks; early && c < plan.chunks().size(); ++c) {
    const int tensor = plan.chunks()[c].pieces.front().tensor;
    if (away[static_cast<std::size_t>(tensor)] != 0) continue;
    const bool is_whole_once = micro_batches == 1;
    if (is_whole_once || crosses_as_core(tensors[static_cast<std::size_t>(tensor)], tensor, plan)) {
      reread += StateForm(codec, plan.chunks()[c], dtypes).part_bytes();
    }
  }
  const std::size_t ring = offload_ring_bytes(plan, types, micro_batches, pinned_limit, landing);
  return {ring + GradientSpill::shared_bytes(plan, gradient) + landing,
          layout.drives.front().bytes,
          ChunkStore::table_bytes(layout),
          static_cast<std::int64_t>(StatePlaces(plan, codec, dtypes, streamed).all().elems),
          states,
          copied,
          compressed,
          parked.bytes,
          reread,
          GradientExit::device_bytes(plan, gradient, device)};
}

}  // namespace sluiceway
