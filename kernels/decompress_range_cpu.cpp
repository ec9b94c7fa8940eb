#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/decompress_range_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/base/check.h"
#include "kernels/decompress-inl.h"
#include "kernels/decompress_range.h"
#include "kernels/dense_expand-inl.h"
#include "kernels/gradient_copy.h"
#include "kernels/range_sink-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

ScanResult range_of_sparse(const AnyMatrix& d, const SparseRows& p, const SparseRows& q,
                           std::int64_t first, std::int64_t last, void* dst, DType dtype,
                           std::span<float> scratch) {
  const ElementRange range{first, last, q.rows};
  RangeSink sink(range, range.first_row(), dst, dtype);
  expand(d, p.row_range(range.first_row(), range.last_row()), q, scratch, sink);
  return sink.result();
}

ScanResult range_of_groups(const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                           std::int64_t first, std::int64_t last, void* dst, DType dtype,
                           std::span<float> scratch) {
  const ElementRange range{first, last, q.rows};
  const std::int64_t group = range.first_row() / p.block;
  const BlockRows part = p.group_range(group, (range.last_row() - 1) / p.block + 1);
  RangeSink sink(range, group * p.block, dst, dtype);
  with_type(d, [&](auto view) HWY_ATTR {
    AnyMatrix rows = d;
    rows.data = const_cast<void*>(static_cast<const void*>(view.row(group * p.kept)));
    rows.rows = part.cols;
    expand(rows, part, q, scratch, sink);
  });
  return sink.result();
}

ScanResult range_of_dense(const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                          std::int64_t first, std::int64_t last, void* dst, DType dtype,
                          std::span<float> scratch) {
  const ElementRange range{first, last, q.rows};
  RangeSink sink(range, 0, dst, dtype);
  expand_dense(d, p, q, range.first_row(), range.last_row(), scratch, sink);
  return sink.result();
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(range_of_sparse);
HWY_EXPORT(range_of_groups);
HWY_EXPORT(range_of_dense);

namespace {

constexpr const char* kName = "decompress_range";

// For larger groups D_g Q^T would cost more than the range itself.
bool is_dense(const BlockRows& p, const BlockRows& q) noexcept {
  return p.block > kTileCols || q.block > kTileCols;
}

// Returns one past the last element of the range, which must lie in an m x n matrix.
std::int64_t end_of_range(std::int64_t m, std::int64_t n, std::int64_t first,
                          std::span<const std::byte> dst, DType dtype) {
  SLUICEWAY_CHECK(dst.size() % size_bytes(dtype) == 0, kName, ": dst has ", dst.size(),
                  " bytes, expected a multiple of ", size_bytes(dtype), " for ", to_string(dtype));
  const auto elems = static_cast<std::int64_t>(dst.size() / size_bytes(dtype));
  SLUICEWAY_CHECK(first >= 0 && first <= m * n && elems <= m * n - first, kName,
                  ": the range is elements ", first, " to ", first + elems,
                  ", expected a part of 0 to ", m * n, " for a ", m, "x", n, " gradient");
  return first + elems;
}

}  // namespace

std::int64_t decompress_range_scratch_elems(const SparseRows& p, const SparseRows& q) {
  return decompress_scratch_elems(p, q);
}

std::int64_t decompress_range_scratch_elems(const BlockRows& p, const BlockRows& q) {
  if (!is_dense(p, q)) return decompress_scratch_elems(p, q);
  return kPadElems + ScratchCutter::cost(kDenseSlab * padded(q.cols)) +
         ScratchCutter::cost(kDenseSlab * q.cols) + ScratchCutter::cost(p.kept * kPadElems) +
         2 * ScratchCutter::cost(kTileCols * kPanelRows);
}

namespace cpu {

ScanResult decompress_range(const AnyMatrix& d, const SparseRows& p, const SparseRows& q,
                            std::int64_t first, std::span<std::byte> dst, DType dtype,
                            std::span<float> scratch) {
  check_shape(kName, named("d", d), p.cols, q.cols);
  check_scratch(kName, scratch.size(), decompress_range_scratch_elems(p, q));
  const std::int64_t last = end_of_range(p.rows, q.rows, first, dst, dtype);
  if (first == last) return {};
  return HWY_DYNAMIC_DISPATCH(range_of_sparse)(d, p, q, first, last, dst.data(), dtype, scratch);
}

ScanResult decompress_range(const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                            std::int64_t first, std::span<std::byte> dst, DType dtype,
                            std::span<float> scratch) {
  check_blocks(kName, "p", p);
  check_blocks(kName, "q", q);
  check_shape(kName, named("d", d), p.cols, q.cols);
  check_scratch(kName, scratch.size(), decompress_range_scratch_elems(p, q));
  const std::int64_t last = end_of_range(p.rows, q.rows, first, dst, dtype);
  if (first == last) return {};
  if (is_dense(p, q)) {
    return HWY_DYNAMIC_DISPATCH(range_of_dense)(d, p, q, first, last, dst.data(), dtype, scratch);
  }
  return HWY_DYNAMIC_DISPATCH(range_of_groups)(d, p, q, first, last, dst.data(), dtype, scratch);
}

ScanResult decompress_range(const AnyMatrix& d, std::int64_t first, std::span<std::byte> dst,
                            DType dtype) {
  check_shape(kName, named("d", d), d.rows, d.cols);
  const std::int64_t last = end_of_range(d.rows, d.cols, first, dst, dtype);
  const auto src_bytes = static_cast<std::int64_t>(size_bytes(d.dtype));
  const auto dst_bytes = static_cast<std::int64_t>(size_bytes(dtype));
  ScanResult all;
  for (std::int64_t at = first; at < last;) {
    const std::int64_t row = at / d.cols, col = at % d.cols;
    const std::int64_t count = d.stride == d.cols ? last - at : std::min(last - at, d.cols - col);
    const auto* const src =
        static_cast<const std::byte*>(d.data) + (row * d.stride + col) * src_bytes;
    all = merge(all, gradient_copy({src, static_cast<std::size_t>(count * src_bytes)}, d.dtype,
                                   dst.subspan(static_cast<std::size_t>((at - first) * dst_bytes),
                                               static_cast<std::size_t>(count * dst_bytes)),
                                   dtype));
    at += count;
  }
  return all;
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
