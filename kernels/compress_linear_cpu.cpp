#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compress_linear_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "kernels/compress_linear.h"
#include "kernels/projector_checks.h"
#include "kernels/projector_shapes.h"
#include "kernels/row_ops-inl.h"
#include "kernels/tile_product-inl.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

template <typename T>
HWY_INLINE void round_row(const float* HWY_RESTRICT from, std::int64_t cols, T* to) {
  const RowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= cols; j += lanes) store_nearest(d, hn::LoadU(d, from + j), to + j);
  for (; j < cols; ++j) to[j] = from_float<T>(from[j]);
}

// Writes rows [first, first + rows) of w, from a panel of rows that are `stride` apart.
HWY_INLINE void put_rows(const AnyMatrix& w, std::int64_t first, std::int64_t rows,
                         const float* panel, std::int64_t stride) {
  const auto put = [&](auto view) HWY_ATTR {
    for (std::int64_t i = 0; i < rows; ++i) {
      round_row(panel + i * stride, w.cols, view.row(first + i));
    }
  };
  switch (w.dtype) {
    case DType::kF32:
      return put(w.as<float>());
    case DType::kF16:
      return put(w.as<f16>());
    case DType::kBF16:
      return put(w.as<bf16>());
  }
}

// ---- Sparse: each column of a panel into r columns of the product, with lanes over rows ---------

HWY_INLINE void scatter_column(const float* HWY_RESTRICT column, const std::int32_t* index,
                               const float* value, std::int64_t count, float* product) {
  const PanelTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < kPanelRows; i += lanes) {
    const auto x = hn::LoadU(d, column + i);
    for (std::int64_t k = 0; k < count; ++k) {
      float* const to = product + index[k] * kPanelRows + i;
      hn::StoreU(hn::MulAdd(hn::Set(d, value[k]), x, hn::LoadU(d, to)), d, to);
    }
  }
}

void project_sparse(const AnyMatrix& w, const AnyMatrix& g, const SparseRows& p,
                    std::span<float> scratch) {
  ScratchCutter cut(scratch);
  float* const panel = cut.take(p.rows * kPanelRows);
  float* const product = cut.take(p.cols * kPanelRows);  // Column by column, like the panel.
  float* const rows_of_product = cut.take(p.cols * kPanelRows);
  for (std::int64_t first = 0; first < g.rows; first += kPanelRows) {
    const std::int64_t rows = std::min(kPanelRows, g.rows - first);
    with_type(g, [&](auto view)
                     HWY_ATTR { pack_panel(view.row(first), view.stride, rows, p.rows, panel); });
    std::fill_n(product, p.cols * kPanelRows, 0.0F);
    for (std::int64_t i = 0; i < p.rows; ++i) {
      scatter_column(panel + i * kPanelRows, p.index + i * p.nnz, p.value + i * p.nnz, p.nnz,
                     product);
    }
    unpack_panel(product, p.cols, rows_of_product, p.cols);
    put_rows(w, first, rows, rows_of_product, p.cols);
  }
}

// ---- Blocks: each group of columns by its own small matrix --------------------------------------

// The factors of one group's product.
struct GroupProduct {
  TileA rows;               // Rows of g, at the columns of the group.
  const float* value;       // The group's values of p, `kept` a row.
  std::int64_t kept, cols;  // Length of a row of p's values; columns of this group.
  std::int64_t xs, ys;
};

// The columns beyond the last whole vector are copied first, since reading past the end of p is not
// allowed. The next group overwrites what this one writes beyond its own columns.
template <class D>
HWY_INLINE void project_group(D d, const GroupProduct& group, const StoreOut& out,
                              float* HWY_RESTRICT edge) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t vectors = group.cols / lanes, whole = vectors * lanes;
  tile_product<false>(d, group.rows, TileB<float>{group.value, group.kept}, out, group.xs, group.ys,
                      vectors);
  if (whole == group.cols) return;
  std::fill_n(edge, group.ys * kPadElems, 0.0F);
  for (std::int64_t y = 0; y < group.ys; ++y) {
    convert_row(group.value + y * group.kept + whole, group.cols - whole, edge + y * kPadElems);
  }
  tile_product<false>(d, group.rows, TileB<float>{edge, kPadElems},
                      StoreOut{out.c + whole, out.stride}, group.xs, group.ys, 1);
}

template <class D>
HWY_INLINE void project_groups(D d, TileA rows, std::int64_t xs, const BlockRows& p, float* product,
                               std::int64_t stride, float* edge) {
  for (std::int64_t group = 0; group < p.groups(); ++group) {
    const std::int64_t row = group * p.block;
    const std::int64_t cols = group + 1 == p.groups() ? p.last_kept : p.kept;
    project_group(d,
                  GroupProduct{rows.col(row), p.value + row * p.kept, p.kept, cols, xs,
                               std::min(p.block, p.rows - row)},
                  StoreOut{product + group * p.kept, stride}, edge);
  }
}

void project_blocks(const AnyMatrix& w, const AnyMatrix& g, const BlockRows& p,
                    std::span<float> scratch) {
  const std::int64_t stride = block_panel_stride(p), wide = padded(p.rows);
  ScratchCutter cut(scratch);
  float* const widened = cut.take(wide * kPanelRows);
  float* const product = cut.take(stride * kPanelRows);
  float* const edge = cut.take(std::min(p.block, p.rows) * kPadElems);
  const hn::CappedTag<float, 16> whole;
  const hn::CappedTag<float, 8> narrow;  // Groups often keep just 8 columns.
  const bool narrowly = p.kept % static_cast<std::int64_t>(hn::Lanes(whole)) != 0;
  for (std::int64_t first = 0; first < g.rows; first += kPanelRows) {
    const std::int64_t rows = std::min(kPanelRows, g.rows - first);
    TileA a{widened, wide, 1};
    with_type(g, [&](auto view) HWY_ATTR {
      if constexpr (std::is_same_v<decltype(view), MatrixView<const float>>) {
        a = TileA{view.row(first), view.stride, 1};
      } else {
        for (std::int64_t i = 0; i < rows; ++i) {
          convert_row(view.row(first + i), view.cols, widened + i * wide);
        }
      }
    });
    if (narrowly) {
      project_groups(narrow, a, rows, p, product, stride, edge);
    } else {
      project_groups(whole, a, rows, p, product, stride, edge);
    }
    put_rows(w, first, rows, product, stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(project_sparse);
HWY_EXPORT(project_blocks);

std::int64_t project_scratch_elems(const SparseRows& p) {
  const std::int64_t of_panels = kPadElems + ScratchCutter::cost(p.rows * kPanelRows) +
                                 2 * ScratchCutter::cost(p.cols * kPanelRows);
  const std::int64_t of_columns = p.cols + 1 + 2 * p.rows * p.nnz;  // On a device: p by column.
  // A device lists p by column; its library for wide rows also works in panels.
  if (p.rows > kMostStagedCols) return of_panels + of_columns;
  return std::max(of_panels, of_columns);
}

std::int64_t project_scratch_elems(const BlockRows& p) {
  return kPadElems + ScratchCutter::cost(padded(p.rows) * kPanelRows) +
         ScratchCutter::cost(block_panel_stride(p) * kPanelRows) +
         ScratchCutter::cost(std::min(p.block, p.rows) * kPadElems);
}

namespace cpu {

void project_rows(const AnyMatrix& w, const AnyMatrix& g, const SparseRows& p,
                  std::span<float> scratch) {
  check_project(w, g, p, scratch);
  HWY_DYNAMIC_DISPATCH(project_sparse)(w, g, p, scratch);
}

void project_rows(const AnyMatrix& w, const AnyMatrix& g, const BlockRows& p,
                  std::span<float> scratch) {
  check_project(w, g, p, scratch);
  HWY_DYNAMIC_DISPATCH(project_blocks)(w, g, p, scratch);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
