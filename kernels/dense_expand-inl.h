// P D Q^T by slabs of rows, for groups so large that every range would recompute D_g Q^T of a whole
// group: computes Y = P_rows D, then Y Q^T, and stores nothing larger than a slab.
//
// The lanes of the second product run over rows, so that Q is read as it lies. Sums are divided
// into depths that fit into the caches; they continue in the same order, so the division does not
// change the bits.
#if defined(SLUICEWAY_KERNELS_DENSE_EXPAND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_DENSE_EXPAND_INL_H_
#undef SLUICEWAY_KERNELS_DENSE_EXPAND_INL_H_
#else
#define SLUICEWAY_KERNELS_DENSE_EXPAND_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/projector_shapes.h"
#include "kernels/row_ops-inl.h"
#include "kernels/tile_product-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

using DenseTag = hn::CappedTag<float, 16>;

// C (+)= A B, with the sum over `depth` divided; C is xs x `vectors` vectors.
template <typename T>
HWY_INLINE void deep_product(const TileA& a, const TileB<T>& b, float* c, std::int64_t stride,
                             std::int64_t xs, std::int64_t depth, std::int64_t vectors) {
  const DenseTag tag;
  for (std::int64_t y = 0; y < std::max<std::int64_t>(depth, 1); y += kDenseDepth) {
    const std::int64_t ys = std::min(kDenseDepth, depth - y);
    if (y == 0) {
      tile_product<false>(tag, a.col(y), b.row(y), StoreOut{c, stride}, xs, ys, vectors);
    } else {
      tile_product<false>(tag, a.col(y), b.row(y), AddOut{c, stride}, xs, ys, vectors);
    }
  }
}

// y = P_rows D for rows of one group, which has `kept` rows of D. Rows of y are padded to whole
// vectors. The columns of D beyond the last whole vector are copied first: reading past its end is
// not allowed.
template <typename T>
HWY_INLINE void project_dense(const TileA& p, const TileB<T>& d, std::int64_t kept,
                              std::int64_t rows, std::int64_t cols, float* y, std::int64_t stride,
                              float* HWY_RESTRICT edge) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(DenseTag()));
  const std::int64_t whole = cols / lanes * lanes;
  deep_product(p, d, y, stride, rows, kept, cols / lanes);
  if (whole == cols) return;
  for (std::int64_t a = 0; a < kept; ++a) {
    convert_row(d.b + a * d.stride + whole, cols - whole, edge + a * kPadElems);
  }
  deep_product(p, TileB<float>{edge, kPadElems}, y + whole, stride, rows, kept, 1);
}

template <typename T>
HWY_INLINE TileB<T> rows_from(MatrixView<const T> d, std::int64_t row) {
  return {d.row(row), d.stride};
}

// y = rows [first, first + rows) of P D, group by group.
HWY_INLINE void project_slab(const BlockRows& p, std::int64_t first, std::int64_t rows,
                             const AnyMatrix& d, float* y, std::int64_t stride, float* edge) {
  for (std::int64_t i = first; i < first + rows;) {
    const std::int64_t group = i / p.block;
    const std::int64_t last = std::min(first + rows, (group + 1) * p.block);
    const std::int64_t kept = group + 1 == p.groups() ? p.last_kept : p.kept;
    with_type(d, [&](auto view) HWY_ATTR {
      project_dense(TileA{p.value + i * p.kept, p.kept, 1}, rows_from(view, group * p.kept), kept,
                    last - i, d.cols, y + (i - first) * stride, stride, edge);
    });
    i = last;
  }
}

// out = columns [col, col + cols) of Y Q^T for a panel of Y, column by column like the panel.
HWY_INLINE void multiply_panel(const BlockRows& q, std::int64_t col, std::int64_t cols,
                               const float* y, float* out) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(DenseTag()));
  for (std::int64_t j = col; j < col + cols;) {
    const std::int64_t group = j / q.block;
    const std::int64_t last = std::min(col + cols, (group + 1) * q.block);
    const std::int64_t kept = group + 1 == q.groups() ? q.last_kept : q.kept;
    deep_product(TileA{q.value + j * q.kept, q.kept, 1},
                 TileB<float>{y + group * q.kept * kPanelRows, kPanelRows},
                 out + (j - col) * kPanelRows, kPanelRows, last - j, kept, kPanelRows / lanes);
    j = last;
  }
}

// Passes rows [first_row, last_row) of P D Q^T to a sink of decompress-inl.h.
template <class Sink>
HWY_INLINE void expand_dense(const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                             std::int64_t first_row, std::int64_t last_row,
                             std::span<float> scratch, Sink& sink) {
  const std::int64_t stride = padded(d.cols), panel_elems = d.cols * kPanelRows;
  ScratchCutter cut(scratch);
  float* const y_rows = cut.take(kDenseSlab * stride);               // Row by row.
  float* const y = cut.take(kDenseSlab / kPanelRows * panel_elems);  // Panels, column by column.
  float* const edge = cut.take(p.kept * kPadElems);
  float* const tile = cut.take(kTileCols * kPanelRows);
  float* const tile_rows = cut.take(kTileCols * kPanelRows);
  for (std::int64_t first = first_row; first < last_row; first += kDenseSlab) {
    const std::int64_t rows = std::min(kDenseSlab, last_row - first);
    project_slab(p, first, rows, d, y_rows, stride, edge);
    for (std::int64_t i = 0; i < rows; i += kPanelRows) {
      pack_panel(y_rows + i * stride, stride, std::min(kPanelRows, rows - i), d.cols,
                 y + i * d.cols);
    }
    for (std::int64_t col = 0; col < q.rows; col += kTileCols) {
      const std::int64_t cols = std::min(kTileCols, q.rows - col);
      for (std::int64_t i = 0; i < rows; i += kPanelRows) {
        const std::int64_t panel = std::min(kPanelRows, rows - i);
        if (!sink.wants(first + i, panel, col, cols)) continue;
        multiply_panel(q, col, cols, y + i * d.cols, tile);
        unpack_panel(tile, cols, tile_rows, kTileCols);
        for (std::int64_t x = 0; x < panel; ++x) {
          sink.take(first + i + x, col, tile_rows + x * kTileCols, cols);
        }
        sink.done(first + i, panel, col, cols);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_DENSE_EXPAND_INL_H_
