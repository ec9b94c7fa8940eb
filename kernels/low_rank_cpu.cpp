#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/low_rank_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/low_rank.h"
#include "kernels/low_rank_checks.h"
#include "kernels/perturb_checks.h"
#include "kernels/theta_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// A tile of a few rows stays in the first-level cache from the load to the store. It spans whole
// vectors, so its last ones may hold columns that do not exist.
constexpr std::size_t kTileCols = 256;
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kWidest = 16;  // Maximum lanes of NoiseTag.

// ---- One vector of columns of one row, or of four rows ------------------------------------------

struct OneRow {
  static constexpr std::size_t kRows = 1;
  NoiseVector a;

  static HWY_INLINE OneRow zero(NoiseTag d) { return {hn::Zero(d)}; }
  static HWY_INLINE OneRow load(NoiseTag d, const float* tile) { return {hn::Load(d, tile)}; }
  HWY_INLINE void add(NoiseTag d, const float* left, NoiseVector right) {
    a = fused(d, hn::Set(d, left[0]), right, a);
  }
  template <class F>
  HWY_INLINE void each(const F& f) const {
    f(std::size_t{0}, a);
  }
};

struct FourRows {
  static constexpr std::size_t kRows = kTileRows;
  NoiseVector a, b, c, e;

  static HWY_INLINE FourRows zero(NoiseTag d) {
    return {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  }
  static HWY_INLINE FourRows load(NoiseTag d, const float* tile) {
    return {hn::Load(d, tile), hn::Load(d, tile + kTileCols), hn::Load(d, tile + 2 * kTileCols),
            hn::Load(d, tile + 3 * kTileCols)};
  }
  HWY_INLINE void add(NoiseTag d, const float* left, NoiseVector right) {
    a = fused(d, hn::Set(d, left[0]), right, a);
    b = fused(d, hn::Set(d, left[1]), right, b);
    c = fused(d, hn::Set(d, left[2]), right, c);
    e = fused(d, hn::Set(d, left[3]), right, e);
  }
  template <class F>
  HWY_INLINE void each(const F& f) const {
    f(std::size_t{0}, a);
    f(std::size_t{1}, b);
    f(std::size_t{2}, c);
    f(std::size_t{3}, e);
  }
};

template <class Rows>
struct Of {};  // Passes a type as an argument.

// ---- L^T R for a block of columns ---------------------------------------------------------------

// Holds rows of R side by side, padded with zeros to whole vectors.
class Product {
 public:
  Product(const LowRank& factors, std::size_t block_cols)
      : factors_(factors),
        stride_(hwy::RoundUpTo(block_cols, kWidest)),
        right_(static_cast<std::size_t>(rank()) * stride_) {}

  std::int64_t rank() const { return factors_.right.rows; }

  // The block is columns [from, from + count).
  void begin_block(std::size_t from, std::size_t count) {
    for (std::int64_t s = 0; s < rank(); ++s) {
      float* const to = right_.data() + static_cast<std::size_t>(s) * stride_;
      std::memcpy(to, factors_.right.row(s) + from, count * sizeof(float));
      std::fill(to + count, to + hwy::RoundUpTo(count, kWidest), 0.0F);
    }
  }

  // Adds L^T R to sums, for rows from i on and for the vector of columns at j of the block.
  template <class Rows>
  HWY_INLINE Rows added_to(Rows sums, std::size_t i, std::size_t j) const {
    const NoiseTag d;
    for (std::int64_t s = 0; s < rank(); ++s) {
      const float* const right = right_.data() + static_cast<std::size_t>(s) * stride_ + j;
      sums.add(d, factors_.left.row(s) + i, hn::LoadU(d, right));
    }
    return sums;
  }

 private:
  LowRank factors_;
  std::size_t stride_;
  std::vector<float> right_;
};

// Returns as many columns as keep both panels in the second-level cache, however many rows they
// have.
std::size_t block_cols(std::int64_t rank, std::size_t cols) {
  constexpr std::size_t kPanelFloats = 32768;
  const std::size_t fit = kPanelFloats / static_cast<std::size_t>(std::max<std::int64_t>(rank, 1));
  return std::min(cols, std::max(kTileCols, fit / kTileCols * kTileCols));
}

// ---- Tiles --------------------------------------------------------------------------------------

struct Tile {
  std::size_t i;      // First row of the tile.
  std::size_t block;  // First column of its block.
  std::size_t j;      // First column of the tile in the block.
  std::size_t cols;   // Number of its columns.
  alignas(64) float a[kTileRows * kTileCols];

  std::size_t column() const { return block + j; }
};

template <class Rows>
void load_a(const AnyMatrix& w, const Product& pending, Tile& tile) {
  const NoiseTag d;
  const std::size_t width = hwy::RoundUpTo(tile.cols, kWidest);
  for (std::size_t r = 0; r < Rows::kRows; ++r) {
    float* const row = tile.a + r * kTileCols;
    const std::size_t at = (tile.i + r) * static_cast<std::size_t>(w.cols) + tile.column();
    load_any(static_cast<const std::byte*>(w.data), w.dtype, at, row, tile.cols);
    std::fill(row + tile.cols, row + width, 0.0F);
  }
  if (pending.rank() == 0) return;
  for (std::size_t j = 0; j < width; j += hn::Lanes(d)) {
    const Rows sums = pending.added_to(Rows::load(d, tile.a + j), tile.i, tile.j + j);
    sums.each([&](std::size_t r, auto a) HWY_ATTR { hn::Store(a, d, tile.a + r * kTileCols + j); });
  }
}

template <class Rows, typename Out>
void store_both(const Tile& tile, const Product& direction, float gamma, float eps,
                Out* HWY_RESTRICT plus, Out* HWY_RESTRICT minus, std::size_t stride) {
  const NoiseTag d;
  const NoiseVector factor = hn::Set(d, gamma), up = hn::Set(d, eps), down = hn::Set(d, -eps);
  for (std::size_t j = 0; j < tile.cols; j += hn::Lanes(d)) {
    const Rows z = direction.added_to(Rows::zero(d), tile.i, tile.j + j);
    z.each([=, &tile](std::size_t r, auto noise) HWY_ATTR {
      const NoiseVector theta = hn::Mul(factor, hn::Load(d, tile.a + r * kTileCols + j));
      store_nearest(d, fused(d, up, noise, theta), plus + r * stride + j);
      store_nearest(d, fused(d, down, noise, theta), minus + r * stride + j);
    });
  }
}

// Calls f(Rows, tile, direction) for every tile, once the tile holds a.
template <class F>
void for_each_theta(const AnyMatrix& w, const LowRank& pending, const LowRank& direction,
                    const F& f) {
  const auto rows = static_cast<std::size_t>(w.rows), cols = static_cast<std::size_t>(w.cols);
  const std::size_t widest = block_cols(pending.right.rows + direction.right.rows, cols);
  Product added(pending, widest), drawn(direction, widest);
  Tile tile;
  for (tile.block = 0; tile.block < cols; tile.block += widest) {
    const std::size_t width = std::min(widest, cols - tile.block);
    added.begin_block(tile.block, width);
    drawn.begin_block(tile.block, width);
    const auto row_of_tiles = [&]<class Rows>(Of<Rows> tag) {
      for (tile.j = 0; tile.j < width; tile.j += kTileCols) {
        tile.cols = std::min(kTileCols, width - tile.j);
        load_a<Rows>(w, added, tile);
        f(tag, tile, drawn);
      }
      tile.i += Rows::kRows;
    };
    for (tile.i = 0; tile.i + kTileRows <= rows;) row_of_tiles(Of<FourRows>{});
    while (tile.i < rows) row_of_tiles(Of<OneRow>{});
  }
}

template <typename Out>
void perturb_to(const AnyMatrix& w, Out* plus, Out* minus, const LowRank& pending, float gamma,
                const LowRank& direction, float eps) {
  const auto cols = static_cast<std::size_t>(w.cols);
  const auto write = [&]<class Rows>(Of<Rows>, const Tile& tile, const Product& drawn) {
    const std::size_t at = tile.i * cols + tile.column();
    if (tile.cols % kWidest == 0) {
      return store_both<Rows>(tile, drawn, gamma, eps, plus + at, minus + at, cols);
    }
    alignas(64) Out up[kTileRows * kTileCols];
    alignas(64) Out down[kTileRows * kTileCols];
    store_both<Rows>(tile, drawn, gamma, eps, up, down, kTileCols);
    for (std::size_t r = 0; r < Rows::kRows; ++r) {
      std::memcpy(plus + at + r * cols, up + r * kTileCols, tile.cols * sizeof(Out));
      std::memcpy(minus + at + r * cols, down + r * kTileCols, tile.cols * sizeof(Out));
    }
  };
  for_each_theta(w, pending, direction, write);
}

void perturb_low_rank_any(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                          const LowRank& pending, float gamma, const LowRank& direction,
                          float eps) {
  const auto to = [&]<typename Out>(Out) {
    perturb_to(w, static_cast<Out*>(plus.data), static_cast<Out*>(minus.data), pending, gamma,
               direction, eps);
  };
  if (plus.dtype == DType::kF32) return to(float{});
  if (plus.dtype == DType::kF16) return to(f16{});
  to(bf16{});
}

void materialise_low_rank_any(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                              float gamma, const NoiseKey* rounding_key, std::uint64_t first) {
  const NoiseStream rounding(rounding_key == nullptr ? NoiseKey{} : *rounding_key);
  const auto cols = static_cast<std::size_t>(w.cols);
  for_each_theta(w, pending, {}, [&]<class Rows>(Of<Rows>, const Tile& tile, const Product&) {
    alignas(64) std::uint16_t drawn[kTileCols];
    const std::uint16_t* const bits = rounding_key == nullptr ? nullptr : drawn;
    for (std::size_t r = 0; r < Rows::kRows; ++r) {
      const std::size_t at = (tile.i + r) * cols + tile.column();
      if (rounding_key != nullptr) rounding.fill(first + at, drawn, tile.cols);
      write_any(tile.a + r * kTileCols, gamma, bits, static_cast<std::byte*>(out.data), out.dtype,
                at, tile.cols);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(perturb_low_rank_any);
HWY_EXPORT(materialise_low_rank_any);

namespace cpu {

void perturb_low_rank(const AnyMatrix& w, const AnyMatrix& plus, const AnyMatrix& minus,
                      const LowRank& pending, float gamma, const LowRank& direction, float eps) {
  check_low_rank("perturb_low_rank", w, pending);
  check_neighbours("perturb_low_rank", w, plus, minus, direction);
  HWY_DYNAMIC_DISPATCH(perturb_low_rank_any)(w, plus, minus, pending, gamma, direction, eps);
}

void materialise_low_rank(const AnyMatrix& w, const AnyMatrix& out, const LowRank& pending,
                          float gamma, Rounding rounding, const NoiseKey& rounding_key,
                          std::uint64_t first) {
  check_low_rank("materialise_low_rank", w, pending);
  check_as_w("materialise_low_rank", "out", out, w);
  check_rounding_of("materialise_low_rank", out.dtype, rounding);
  HWY_DYNAMIC_DISPATCH(materialise_low_rank_any)
  (w, out, pending, gamma, rounding == Rounding::kStochastic ? &rounding_key : nullptr, first);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
