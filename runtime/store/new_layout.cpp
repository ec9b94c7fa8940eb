#include "runtime/store/new_layout.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "runtime/device/device_memory.h"
#include "runtime/store/format.h"
#include "runtime/store/place_bytes.h"

namespace sluiceway {
namespace {

constexpr std::uint32_t kMetaSlots = 3;  // Live, pinned, and the one being written.

// Appends extents to the drives of a layout.
class Placement {
 public:
  explicit Placement(std::vector<DriveShare>& drives) : drives_(drives) {}

  std::uint64_t take(std::size_t drive, std::uint64_t bytes) {
    const std::uint64_t at = drives_[drive].bytes;
    drives_[drive].bytes += bytes;
    return at;
  }

  // Takes room for one slot of every chunk of a region.
  std::vector<std::uint64_t> take_slot(const Region& region, const Striping& striping) {
    std::vector<std::uint64_t> base;
    for (std::uint32_t d = 0; d < drives_.size(); ++d) {
      base.push_back(take(d, striping.count(d) * region.chunk_bytes));
    }
    return base;
  }

  MetaSlots take_meta(std::uint64_t bytes) {
    MetaSlots slots{round_up(std::max<std::uint64_t>(bytes, 1), kBlockBytes), {}};
    for (std::uint32_t i = 0; i < kMetaSlots; ++i) slots.base.push_back(take(0, slots.bytes));
    return slots;
  }

 private:
  std::vector<DriveShare>& drives_;
};

void check(const Contents& contents, const std::vector<std::uint32_t>& weights) {
  SLUICEWAY_CHECK(!weights.empty() && weights.size() <= kMostDrives, "new_layout: ", weights.size(),
                  " drives, expected 1 to ", kMostDrives);
  SLUICEWAY_CHECK(std::ranges::all_of(weights, [](std::uint32_t w) { return w > 0; }),
                  "new_layout: a drive has weight 0, expected 1 or more for every drive");
  SLUICEWAY_CHECK(!contents.regions.empty(), "new_layout: no regions, expected 1 or more");
  for (const RegionSpec& region : contents.regions) {
    SLUICEWAY_CHECK(is_known(region.kind) && region.chunks > 0 && region.slots > 0,
                    "new_layout: a region of ", to_string(region.kind), " has ", region.chunks,
                    " chunks of ", region.slots, " slots, expected 1 or more of each");
    SLUICEWAY_CHECK(region.chunk_bytes > 0 && region.chunk_bytes % kBlockBytes == 0,
                    "new_layout: chunks of ", region.chunk_bytes, " bytes, expected a multiple of ",
                    kBlockBytes);
  }
}

}  // namespace

std::uint64_t committed_chunks(const Layout& layout) noexcept {
  std::uint64_t chunks = 0;
  for (const Region& region : layout.regions) chunks += region.is_committed() ? region.chunks : 0;
  return chunks;
}

Place first_directory_place() noexcept { return {0, kFirstExtent}; }

Layout new_layout(const Contents& contents, const std::vector<std::uint32_t>& weights) {
  check(contents, weights);
  Layout layout;
  layout.catalogue = contents.catalogue;
  for (const std::uint32_t weight : weights) layout.drives.push_back({kFirstExtent, weight});
  for (const RegionSpec& spec : contents.regions) {
    const std::vector<std::uint64_t> nowhere(weights.size());
    layout.regions.push_back({spec.kind, spec.chunk_bytes, spec.chunks, {spec.slots, nowhere}});
    layout.spares.chunk_bytes = std::max(layout.spares.chunk_bytes, spec.chunk_bytes);
  }
  layout.spares.per_drive = contents.spares_per_drive;
  layout.spares.base.resize(weights.size());
  layout.tables.base.resize(kMetaSlots);
  layout.run_states.base.resize(kMetaSlots);

  Placement placement(layout.drives);
  // The length of a layout's encoding depends on its counts, not on its places, so these may
  // follow.
  placement.take(0, round_up(encode(layout).size(), kBlockBytes));
  layout.tables = placement.take_meta(committed_chunks(layout) * kExtentBytes);
  layout.run_states = placement.take_meta(contents.run_state_bytes);
  for (Region& region : layout.regions) {
    const Striping striping(region.chunks, layout.drives);
    for (auto& base : region.base) base = placement.take_slot(region, striping);
  }
  for (std::uint32_t d = 0; d < weights.size(); ++d) {
    layout.spares.base[d] = placement.take(d, layout.spares.per_drive * layout.spares.chunk_bytes);
  }
  return layout;
}

Layout with_more_slots(const Layout& layout, std::uint32_t region, std::uint32_t more) {
  SLUICEWAY_CHECK(region < layout.regions.size(), "with_more_slots: region ", region,
                  ", expected a number below ", layout.regions.size());
  Layout grown = layout;
  Region& wide = grown.regions[region];
  Placement placement(grown.drives);
  const Striping striping(wide.chunks, grown.drives);
  for (std::uint32_t i = 0; i < more; ++i) {
    wide.base.push_back(placement.take_slot(wide, striping));
  }
  placement.take(0, round_up(encode(grown).size(), kBlockBytes));
  return grown;
}

Place grown_directory_place(const Layout& layout) {
  return {0, layout.drives.front().bytes - round_up(encode(layout).size(), kBlockBytes)};
}

}  // namespace sluiceway
