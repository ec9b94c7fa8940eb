// Where everything of a new store goes, and of one that grows.
//
// Order on each drive: header, superblocks (first drive), directory (first drive), tables and run
// states (first drive), then the regions slot by slot, then spares. Growing appends.
//
// Errors: InvalidArgument: sizes that are no whole blocks, nothing to hold, more drives than 255.
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
  std::uint32_t slots = 2;  // Of gradients: extents of micro-batches.
};

struct Contents {
  std::vector<RegionSpec> regions;
  std::vector<std::byte> catalogue;
  std::uint64_t run_state_bytes = kRunStateBytes;  // Most that a commit may carry.
  std::uint64_t spares_per_drive = 8;
};

// `weights`: one a drive, as their rates are to one another.
Layout new_layout(const Contents& contents, const std::vector<std::uint32_t>& weights);

// `more` slots for a region, at the ends of the drives, and room for the new directory there.
Layout with_more_slots(const Layout& layout, std::uint32_t region, std::uint32_t more);

// Where the directory of such a layout lies: after the superblocks, or at the end of the first
// drive.
Place first_directory_place() noexcept;
Place grown_directory_place(const Layout& layout);

std::uint64_t committed_chunks(const Layout& layout) noexcept;

}  // namespace sluiceway
