#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decompress_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/decompress-inl.h"
#include "kernels/decompress.h"
#include "kernels/projector_checks.h"
#include "kernels/weight_update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

void update_sparse(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                   const SparseRows& p, const SparseRows& q, const WeightUpdate& update,
                   std::span<float> scratch) {
  UpdateSink sink(w, low, update);
  expand(d, p, q, scratch, sink);
}

void update_blocks(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                   const BlockRows& p, const BlockRows& q, const WeightUpdate& update,
                   std::span<float> scratch) {
  UpdateSink sink(w, low, update);
  expand(d, p, q, scratch, sink);
}

void update_identity(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                     const WeightUpdate& update) {
  UpdateSink sink(w, low, update);
  with_type(d, [&](auto view) HWY_ATTR {
    HWY_ALIGN float piece[kTileCols];
    for (std::int64_t i = 0; i < w.rows; ++i) {
      for (std::int64_t j = 0; j < w.cols; j += kTileCols) {
        const std::int64_t count = std::min(kTileCols, w.cols - j);
        convert_row(view.row(i) + j, count, piece);
        sink.take(i, j, piece, count);
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(update_sparse);
HWY_EXPORT(update_blocks);
HWY_EXPORT(update_identity);

std::int64_t decompress_scratch_elems(const SparseRows& p, const SparseRows& q) {
  (void)p;  // Panels have a fixed number of rows.
  return kPadElems + 2 * ScratchCutter::cost(q.cols * kPanelRows) +
         2 * ScratchCutter::cost(kTileCols * kPanelRows);
}

std::int64_t decompress_scratch_elems(const BlockRows& p, const BlockRows& q) {
  if (p.block <= 0 || q.block <= 0) return 0;
  const std::int64_t stride = padded(block_tile_cols(q)), q_stride = padded(q.block);
  return kPadElems + ScratchCutter::cost(q.groups() * q.kept * q_stride) +
         ScratchCutter::cost(p.kept * q.cols) + ScratchCutter::cost(p.kept * (stride + q_stride)) +
         ScratchCutter::cost(kPieceRows * stride);
}

namespace cpu {

void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const SparseRows& p, const SparseRows& q, const WeightUpdate& update,
                std::span<float> scratch) {
  check_decompress(w, low, d, p, q, update, scratch);
  HWY_DYNAMIC_DISPATCH(update_sparse)(w, low, d, p, q, update, scratch);
}

void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const BlockRows& p, const BlockRows& q, const WeightUpdate& update,
                std::span<float> scratch) {
  check_decompress(w, low, d, p, q, update, scratch);
  HWY_DYNAMIC_DISPATCH(update_blocks)(w, low, d, p, q, update, scratch);
}

void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const WeightUpdate& update) {
  check_decompress(w, low, d, update);
  HWY_DYNAMIC_DISPATCH(update_identity)(w, low, d, update);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
