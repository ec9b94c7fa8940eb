// Sums of squares by row and column, piece by piece.
#if defined(SLUICEWAY_KERNELS_SQUARES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_SQUARES_INL_H_
#undef SLUICEWAY_KERNELS_SQUARES_INL_H_
#else
#define SLUICEWAY_KERNELS_SQUARES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/row_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

class SquareSums {
 public:
  // Sums the squares of scale times each element: a loss scale must not square to infinity.
  SquareSums(std::span<float> rows, std::span<float> cols, float scale)
      : rows_(rows), cols_(cols), scale_(scale) {
    std::fill(rows.begin(), rows.end(), 0.0F);
    std::fill(cols.begin(), cols.end(), 0.0F);
  }

  // Adds rows [i, i + rows) of columns [j, j + cols) of r.
  template <typename T>
  HWY_INLINE void add(MatrixView<T> r, std::int64_t i, std::int64_t rows, std::int64_t j,
                      std::int64_t cols) {
    const std::int64_t end = i + rows;
    for (; i + kRows <= end; i += kRows) add_rows<kRows>(r, i, j, cols);
    for (; i < end; ++i) add_rows<1>(r, i, j, cols);
  }

  void divide() {  // Turns sums into means.
    if (rows_.empty() || cols_.empty()) return;
    const float per_row = 1.0F / static_cast<float>(cols_.size());
    const float per_col = 1.0F / static_cast<float>(rows_.size());
    for (float& x : rows_) x *= per_row;
    for (float& x : cols_) x *= per_col;
  }

 private:
  static constexpr std::int64_t kRows = 4;

  // Takes a vector of columns at a time; its sum stays in a register until all rows are added.
  template <std::int64_t kCount, typename T>
  HWY_INLINE void add_rows(MatrixView<T> r, std::int64_t i, std::int64_t j, std::int64_t count) {
    const RowTag d;
    using V = hn::Vec<RowTag>;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const T* const x = r.row(i) + j;
    float* HWY_RESTRICT const cols = cols_.data() + j;
    const V scale = hn::Set(d, scale_);
    const auto square = [&](V& row, V col, std::int64_t at) HWY_ATTR {
      const V v = hn::Mul(scale, load_f32(d, x + at));
      row = hn::MulAdd(v, v, row);
      return hn::MulAdd(v, v, col);
    };
    V row0 = hn::Zero(d), row1 = row0, row2 = row0, row3 = row0;
    std::int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
      V col = square(row0, hn::LoadU(d, cols + k), k);
      if constexpr (kCount == kRows) {
        col = square(row1, col, r.stride + k);
        col = square(row2, col, 2 * r.stride + k);
        col = square(row3, col, 3 * r.stride + k);
      }
      hn::StoreU(col, d, cols + k);
    }
    float* const sums = rows_.data() + i;
    sums[0] += hn::GetLane(hn::SumOfLanes(d, row0));
    if constexpr (kCount == kRows) {
      sums[1] += hn::GetLane(hn::SumOfLanes(d, row1));
      sums[2] += hn::GetLane(hn::SumOfLanes(d, row2));
      sums[3] += hn::GetLane(hn::SumOfLanes(d, row3));
    }
    for (; k < count; ++k) {
      for (std::int64_t y = 0; y < kCount; ++y) {
        const float v = scale_ * to_float(x[y * r.stride + k]);
        sums[y] += v * v;
        cols[k] += v * v;
      }
    }
  }

  const std::span<float> rows_, cols_;
  const float scale_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_SQUARES_INL_H_
