// Places everything in a new store, and in one that grows.
//
// Order on each drive: header, superblocks (first drive), directory (first drive), tables and run
// states (first drive), then the regions slot by slot, then spares. Growing appends.
//
// Errors: InvalidArgument: sizes that are not whole blocks, no regions, more than 255 drives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/store/layout.h"

namespace sluiceway {

inline constexpr std::uint64_t kRunStateBytes = std::uint64_t{1} << 20;

struct RegionSpec {
  RegionKind kind = RegionKind::kState;
  std::uint64_t chunk_bytes = std::uint64_t{4} << 20;
  std::uint64_t chunks = 0;
  std::uint32_t slots = 2;  // For gradients: extents of micro-batches.
};

struct Contents {
  std::vector<RegionSpec> regions;
  std::vector<std::byte> catalogue;
  std::uint64_t run_state_bytes = kRunStateBytes;  // Most bytes of run state in a commit.
  std::uint64_t spares_per_drive = 8;
};

// `weights`: one per drive, in proportion to their rates.
Layout new_layout(const Contents& contents, const std::vector<std::uint32_t>& weights);

// Adds `more` slots to a region at the ends of the drives, and room for the new directory there.
Layout with_more_slots(const Layout& layout, std::uint32_t region, std::uint32_t more);

// Return where the directory lies: after the superblocks, or in a grown layout at the end of the
// first drive.
Place first_directory_place() noexcept;
Place grown_directory_place(const Layout& layout);

std::uint64_t committed_chunks(const Layout& layout) noexcept;

}  // namespace sluiceway
