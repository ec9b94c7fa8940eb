#include "runtime/store/layout.h"

#include "kernels/base/check.h"

namespace sluiceway {

std::string_view to_string(RegionKind kind) noexcept {
  switch (kind) {
    case RegionKind::kState:
      return "state";
    case RegionKind::kGradient:
      return "gradient";
    case RegionKind::kWeights:
      return "weights";
    case RegionKind::kLog:
      return "log";
  }
  return "unknown";
}

bool is_known(RegionKind kind) noexcept { return to_string(kind) != "unknown"; }

RegionKind parse_region_kind(std::string_view name) {
  for (const RegionKind kind :
       {RegionKind::kState, RegionKind::kGradient, RegionKind::kWeights, RegionKind::kLog}) {
    if (name == to_string(kind)) return kind;
  }
  throw_invalid_argument(concat("parse_region_kind: kind is \"", name,
                                "\", expected state, gradient, weights or log"));
}

Striping::Striping(std::uint64_t chunks, const std::vector<DriveShare>& drives)
    : drive_(chunks), rank_(chunks), count_(drives.size()) {
  for (std::uint64_t chunk = 0; chunk < chunks; ++chunk) {
    std::uint32_t next = 0;
    for (std::uint32_t d = 1; d < drives.size(); ++d) {
      // A drive would be done at (count + 1) / weight; compared without a division.
      const std::uint64_t here = (count_[d] + 1) * drives[next].weight;
      const std::uint64_t best = (count_[next] + 1) * drives[d].weight;
      if (here < best) next = d;
    }
    drive_[chunk] = next;
    rank_[chunk] = count_[next]++;
  }
}

Place home(const Region& region, const Striping& striping, std::uint64_t chunk,
           std::uint64_t slot) {
  const std::uint32_t drive = striping.drive(chunk);
  return {drive, region.base.at(slot).at(drive) + striping.rank(chunk) * region.chunk_bytes};
}

}  // namespace sluiceway
