#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compress_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <algorithm>

#include "kernels/compress.h"
#include "kernels/projector_checks.h"
#include "kernels/row_ops-inl.h"
#include "kernels/tile_product-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// ---- Sparse: (panel of G) Q with lanes over rows, then each row into r rows of S ----------------

template <typename T>
void sparse_panels(MatrixView<float> s, float beta, MatrixView<const T> g, const SparseRows& p,
                   const SparseColumns& q, std::span<float> scratch) {
  ScratchCutter cut(scratch);
  float* const panel = cut.take(g.cols * kPanelRows);
  float* const product = cut.take(s.cols * kPanelRows);       // Column by column, like the panel.
  float* const product_rows = cut.take(s.cols * kPanelRows);  // Row by row.
  scale_matrix(s, beta);
  for (std::int64_t first = 0; first < g.rows; first += kPanelRows) {
    const std::int64_t rows = std::min(kPanelRows, g.rows - first);
    pack_panel(g.row(first), g.stride, rows, g.cols, panel);
    for (std::int64_t c = 0; c < s.cols; ++c) {
      const std::int32_t start = q.offset[c];
      gather_column(panel, q.row + start, q.value + start, q.offset[c + 1] - start,
                    product + c * kPanelRows);
    }
    unpack_panel(product, s.cols, product_rows, s.cols);
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t e = (first + i) * p.nnz;
      for (std::int64_t k = 0; k < p.nnz; ++k) {
        add_multiple(p.value[e + k], product_rows + i * s.cols, s.cols, s.row(p.index[e + k]));
      }
    }
  }
}

// ---- Blocks: P_g^T (tile of G), then (that) Q_h into the block (g, h) of S ----------------------

using WideTag = hn::CappedTag<float, 16>;
using NarrowTag = hn::CappedTag<float, 8>;  // Groups often keep just 8 columns.

// left = P_g^T (rows x cols of G). The columns beyond the last whole vector are copied first, since
// reading past the end of G is not allowed. Rows of `left` are padded to whole vectors.
template <typename T>
HWY_INLINE void project_tile(const TileA& p_group, const TileB<T>& g, std::int64_t kept,
                             std::int64_t rows, std::int64_t cols, float* left, std::int64_t stride,
                             float* HWY_RESTRICT edge) {
  const WideTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t vectors = cols / lanes, whole = vectors * lanes;
  tile_product<true>(d, p_group, g, StoreOut{left, stride}, kept, rows, vectors);
  if (whole == cols) return;
  for (std::int64_t i = 0; i < rows; ++i) {
    convert_row(g.b + i * g.stride + whole, cols - whole, edge + i * kPadElems);
  }
  tile_product<false>(d, p_group, TileB<float>{edge, kPadElems}, StoreOut{left + whole, stride},
                      kept, rows, 1);
}

// s += left Q_h, where left is rows x inner and Q_h is inner x cols.
struct CoreBlock {
  float* s;
  std::int64_t stride, rows, cols;
};

HWY_INLINE void add_core_block(const CoreBlock& to, const TileA& left, const float* q_block,
                               std::int64_t kept, std::int64_t inner, float* HWY_RESTRICT padding) {
  const NarrowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if (to.cols % lanes == 0) {
    return tile_product<false>(d, left, TileB<float>{q_block, kept}, AddOut{to.s, to.stride},
                               to.rows, inner, to.cols / lanes);
  }
  const std::int64_t stride = padded(to.cols);
  float* const sum = padding + inner * stride;
  for (std::int64_t j = 0; j < inner; ++j) {
    convert_row(q_block + j * kept, to.cols, padding + j * stride);
  }
  tile_product<false>(d, left, TileB<float>{padding, stride}, StoreOut{sum, stride}, to.rows, inner,
                      (to.cols + lanes - 1) / lanes);
  for (std::int64_t a = 0; a < to.rows; ++a) {
    add_multiple(1.0F, sum + a * stride, to.cols, to.s + a * to.stride);
  }
}

template <typename T>
void block_tiles(MatrixView<float> s, float beta, MatrixView<const T> g, const BlockRows& p,
                 const BlockRows& q, std::span<float> scratch) {
  const std::int64_t tile_cols = block_tile_cols(q), stride = padded(tile_cols);
  ScratchCutter cut(scratch);
  float* const left = cut.take(p.kept * stride);
  float* const edge = cut.take(p.block * kPadElems);
  float* const padding = cut.take((p.kept + q.block) * padded(q.kept));
  scale_matrix(s, beta);
  for (std::int64_t group = 0; group < p.groups(); ++group) {
    const std::int64_t row = group * p.block, rows = std::min(p.block, p.rows - row);
    const std::int64_t kept = group + 1 == p.groups() ? p.last_kept : p.kept;
    for (std::int64_t first = 0; first < g.cols; first += tile_cols) {
      const std::int64_t cols = std::min(tile_cols, g.cols - first);
      const TileB<T> tile{g.row(row) + first, g.stride};
      project_tile(TileA{p.value + row * p.kept, 1, p.kept}, tile, kept, rows, cols, left, stride,
                   edge);
      for (std::int64_t j = 0; j < cols; j += q.block) {
        const std::int64_t h = (first + j) / q.block;
        const CoreBlock to{s.row(group * p.kept) + h * q.kept, s.stride, kept,
                           h + 1 == q.groups() ? q.last_kept : q.kept};
        add_core_block(to, TileA{left + j, stride, 1}, q.value + h * q.block * q.kept, q.kept,
                       std::min(q.block, cols - j), padding);
      }
    }
  }
}

// ---- Identity ----------------------------------------------------------------------------------

template <typename T>
void accumulate_rows(MatrixView<float> s, float beta, MatrixView<const T> g) {
  for (std::int64_t i = 0; i < s.rows; ++i) {
    if (beta == 0.0F) {
      convert_row(g.row(i), s.cols, s.row(i));
    } else {
      scale_matrix(s.row_range(i, i + 1), beta);
      add_multiple(1.0F, g.row(i), s.cols, s.row(i));
    }
  }
}

// ---- Element types -----------------------------------------------------------------------------

void compress_sparse(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
                     const SparseColumns& q, std::span<float> scratch) {
  with_type(g, [&](auto view) HWY_ATTR { sparse_panels(s, beta, view, p, q, scratch); });
}
void compress_blocks(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
                     const BlockRows& q, std::span<float> scratch) {
  with_type(g, [&](auto view) HWY_ATTR { block_tiles(s, beta, view, p, q, scratch); });
}
void compress_identity(MatrixView<float> s, float beta, const AnyMatrix& g) {
  with_type(g, [&](auto view) HWY_ATTR { accumulate_rows(s, beta, view); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(compress_sparse);
HWY_EXPORT(compress_blocks);
HWY_EXPORT(compress_identity);

std::int64_t compress_scratch_elems(const SparseRows& p, const SparseColumns& q) {
  (void)p;  // Panels have a fixed number of rows.
  return kPadElems + ScratchCutter::cost(q.rows * kPanelRows) +
         2 * ScratchCutter::cost(q.cols * kPanelRows);
}

std::int64_t compress_scratch_elems(const BlockRows& p, const BlockRows& q) {
  if (p.block <= 0 || q.block <= 0) return 0;
  const std::int64_t stride = padded(block_tile_cols(q));
  return kPadElems + ScratchCutter::cost(p.kept * stride) +
         ScratchCutter::cost(p.block * kPadElems) +
         ScratchCutter::cost((p.kept + q.block) * padded(q.kept));
}

namespace cpu {

void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const SparseRows& p,
              const SparseColumns& q, std::span<float> scratch) {
  check_compress(s, g, p, q, scratch);
  HWY_DYNAMIC_DISPATCH(compress_sparse)(s, beta, g, p, q, scratch);
}

void compress(MatrixView<float> s, float beta, const AnyMatrix& g, const BlockRows& p,
              const BlockRows& q, std::span<float> scratch) {
  check_compress(s, g, p, q, scratch);
  HWY_DYNAMIC_DISPATCH(compress_blocks)(s, beta, g, p, q, scratch);
}

void compress(MatrixView<float> s, float beta, const AnyMatrix& g) {
  check_compress(s, g);
  HWY_DYNAMIC_DISPATCH(compress_identity)(s, beta, g);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
