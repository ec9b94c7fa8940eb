// Computes P D Q^T by panels of rows and passes it to a sink piece by piece. decompress and its
// neighbours share this.
//
//   sink.wants(i, rows, j, cols)  whether any of this piece is wanted; if not, it is skipped
//   sink.touch(i, rows, j, cols)  this piece comes soon: a chance to ask memory for it
//   sink.take(i, j, x, count)     x[0 .. count) is (P D Q^T)[i][j .. j + count)
//   sink.done(i, rows, j, cols)   all rows of this piece were taken
//
// Sparse: Y = (panel of P) D, transposed; then lanes run over rows while a row of Q selects columns
// of Y. Blocks: T = D_g Q^T of one group, then P_g T.
#if defined(SLUICEWAY_KERNELS_DECOMPRESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_DECOMPRESS_INL_H_
#undef SLUICEWAY_KERNELS_DECOMPRESS_INL_H_
#else
#define SLUICEWAY_KERNELS_DECOMPRESS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "kernels/projector_shapes.h"
#include "kernels/row_ops-inl.h"
#include "kernels/tile_product-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// y[i] = row first + i of P D, for a panel of rows; rows beyond `rows` become zeros.
HWY_INLINE void project_rows(const SparseRows& p, std::int64_t first, std::int64_t rows,
                             const AnyMatrix& d, float* y) {
  std::memset(y, 0, static_cast<std::size_t>(kPanelRows * d.cols) * sizeof(float));
  with_type(d, [&](auto view) HWY_ATTR {
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t e = (first + i) * p.nnz;
      for (std::int64_t k = 0; k < p.nnz; ++k) {
        add_multiple(p.value[e + k], view.row(p.index[e + k]), d.cols, y + i * d.cols);
      }
    }
  });
}

template <class Sink>
HWY_INLINE void expand(const AnyMatrix& d, const SparseRows& p, const SparseRows& q,
                       std::span<float> scratch, Sink& sink) {
  ScratchCutter cut(scratch);
  float* const y_rows = cut.take(d.cols * kPanelRows);  // Row by row.
  float* const y = cut.take(d.cols * kPanelRows);       // Column by column.
  float* const tile = cut.take(kTileCols * kPanelRows);
  float* const tile_rows = cut.take(kTileCols * kPanelRows);
  for (std::int64_t first = 0; first < p.rows; first += kPanelRows) {
    const std::int64_t rows = std::min(kPanelRows, p.rows - first);
    project_rows(p, first, rows, d, y_rows);
    pack_panel(y_rows, d.cols, kPanelRows, d.cols, y);
    for (std::int64_t col = 0; col < q.rows; col += kTileCols) {
      const std::int64_t cols = std::min(kTileCols, q.rows - col);
      if (!sink.wants(first, rows, col, cols)) continue;
      for (std::int64_t j = 0; j < cols; ++j) {
        const std::int64_t e = (col + j) * q.nnz;
        gather_column(y, q.index + e, q.value + e, q.nnz, tile + j * kPanelRows);
      }
      unpack_panel(tile, cols, tile_rows, kTileCols);
      for (std::int64_t i = 0; i < rows; ++i) {
        sink.take(first + i, col, tile_rows + i * kTileCols, cols);
      }
      sink.done(first, rows, col, cols);
    }
  }
}

// Transposes every group of Q, kept x block, with rows padded: B of the product D_g Q_h^T.
HWY_INLINE void transpose_groups(const BlockRows& q, float* HWY_RESTRICT out) {
  const std::int64_t stride = padded(q.block);
  for (std::int64_t h = 0; h < q.groups(); ++h) {
    const std::int64_t rows = std::min(q.block, q.rows - h * q.block);
    const float* const from = q.value + h * q.block * q.kept;
    float* const to = out + h * q.kept * stride;
    for (std::int64_t c = 0; c < q.kept; ++c) {
      for (std::int64_t j = 0; j < rows; ++j) to[c * stride + j] = from[j * q.kept + c];
    }
  }
}

template <class Sink>
HWY_INLINE void expand(const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                       std::span<float> scratch, Sink& sink) {
  const std::int64_t tile_cols = block_tile_cols(q), stride = padded(tile_cols);
  const std::int64_t q_stride = padded(q.block);
  ScratchCutter cut(scratch);
  float* const q_groups = cut.take(q.groups() * q.kept * q_stride);
  float* const d_rows = cut.take(p.kept * d.cols);
  float* const right = cut.take(p.kept * (stride + q_stride));  // D_g Q^T, a tile of columns.
  float* const tile = cut.take(kPieceRows * stride);
  const hn::CappedTag<float, 16> tag;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  transpose_groups(q, q_groups);
  for (std::int64_t group = 0; group < p.groups(); ++group) {
    const std::int64_t row = group * p.block, rows = std::min(p.block, p.rows - row);
    const std::int64_t kept = group + 1 == p.groups() ? p.last_kept : p.kept;
    with_type(d, [&](auto view) HWY_ATTR {
      for (std::int64_t a = 0; a < kept; ++a) {
        convert_row(view.row(group * p.kept + a), d.cols, d_rows + a * d.cols);
      }
    });
    for (std::int64_t col = 0; col < q.rows; col += tile_cols) {
      const std::int64_t cols = std::min(tile_cols, q.rows - col);
      if (!sink.wants(row, rows, col, cols)) continue;
      const std::int64_t right_stride = stride + q_stride;
      for (std::int64_t j = 0; j < cols; j += q.block) {
        const std::int64_t h = (col + j) / q.block;
        tile_product<false>(tag, TileA{d_rows + h * q.kept, d.cols, 1},
                            TileB<float>{q_groups + h * q.kept * q_stride, q_stride},
                            StoreOut{right + j, right_stride}, kept,
                            h + 1 == q.groups() ? q.last_kept : q.kept,
                            (std::min(q.block, cols - j) + lanes - 1) / lanes);
      }
      for (std::int64_t i = 0; i < rows; i += kPieceRows) {
        const std::int64_t piece = std::min(kPieceRows, rows - i);
        if (!sink.wants(row + i, piece, col, cols)) continue;
        sink.touch(row + i, piece, col, cols);
        tile_product<false>(tag, TileA{p.value + (row + i) * p.kept, p.kept, 1},
                            TileB<float>{right, right_stride}, StoreOut{tile, stride}, piece, kept,
                            (cols + lanes - 1) / lanes);
        for (std::int64_t x = 0; x < piece; ++x)
          sink.take(row + i + x, col, tile + x * stride, cols);
        sink.done(row + i, piece, col, cols);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_DECOMPRESS_INL_H_
