// Sums the gradients of several micro-batches tile by tile in f32, in their order, so that no whole
// sum is ever in memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/base/dtype.h"

namespace sluiceway {

// 16 KiB of f32, which stay in the first-level cache.
inline constexpr std::size_t kSumTileElems = 4096;

// Calls `act(at, tile)` for every tile of the sum, at element `at`.
template <typename G, typename Act>
void for_each_sum_tile(const std::vector<std::span<const G>>& extents, const Act& act) {
  std::array<float, kSumTileElems> sum;
  for (std::size_t at = 0; at < extents.front().size(); at += kSumTileElems) {
    const auto tile = std::span(sum).first(std::min(kSumTileElems, extents.front().size() - at));
    std::ranges::transform(extents.front().subspan(at, tile.size()), tile.begin(),
                           [](G g) { return to_float(g); });
    for (std::size_t k = 1; k < extents.size(); ++k) {
      const auto extent = extents[k].subspan(at, tile.size());
      for (std::size_t i = 0; i < tile.size(); ++i) tile[i] += to_float(extent[i]);
    }
    act(at, std::span<const float>(tile));
  }
}

// Calls `act` with a zero of the type.
template <typename Act>
void with_type(DType dtype, const Act& act) {
  switch (dtype) {
    case DType::kF32:
      return act(float{});
    case DType::kF16:
      return act(f16{});
    case DType::kBF16:
      return act(bf16{});
  }
}

}  // namespace sluiceway
