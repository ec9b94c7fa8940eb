// Takes pieces of a matrix, and writes and scans what of them is in a range of its elements.
#if defined(SLUICEWAY_KERNELS_RANGE_SINK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_RANGE_SINK_INL_H_
#undef SLUICEWAY_KERNELS_RANGE_SINK_INL_H_
#else
#define SLUICEWAY_KERNELS_RANGE_SINK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/gradient_copy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// Elements [first, last) of a row-major matrix of `cols` columns, at least one.
struct ElementRange {
  std::int64_t first, last, cols;

  std::int64_t first_row() const { return first / cols; }
  std::int64_t last_row() const { return (last - 1) / cols + 1; }  // One past.
};

class RangeSink {
 public:
  // Row 0 of the pieces is row `row_offset` of the matrix.
  RangeSink(const ElementRange& range, std::int64_t row_offset, void* dst, DType dtype)
      : range_(range), row_offset_(row_offset), dst_(dst), dtype_(dtype) {}

  HWY_INLINE bool wants(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    const std::int64_t top = std::max(row_offset_ + i, range_.first_row());
    const std::int64_t bottom = std::min(row_offset_ + i + rows, range_.last_row());
    if (bottom - top > 2) return true;  // A row between the first and the last is there whole.
    for (std::int64_t row = top; row < bottom; ++row) {
      const std::int64_t begin = row * range_.cols + j;
      if (begin < range_.last && begin + cols > range_.first) return true;
    }
    return false;
  }

  HWY_INLINE void touch(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {}
  HWY_INLINE void done(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {}

  HWY_INLINE void take(std::int64_t i, std::int64_t j, const float* x, std::int64_t count) {
    const std::int64_t begin = (row_offset_ + i) * range_.cols + j;
    const std::int64_t from = std::max(begin, range_.first);
    const std::int64_t to = std::min(begin + count, range_.last);
    if (from >= to) return;
    x += from - begin;
    const std::int64_t at = from - range_.first;
    const auto size = static_cast<std::size_t>(to - from);
    switch (dtype_) {
      case DType::kF32:
        return round_and_scan(x, static_cast<float*>(dst_) + at, size, scan_);
      case DType::kF16:
        return round_and_scan(x, static_cast<f16*>(dst_) + at, size, scan_);
      case DType::kBF16:
        return round_and_scan(x, static_cast<bf16*>(dst_) + at, size, scan_);
    }
  }

  ScanResult result() const { return scan_.result(); }

 private:
  const ElementRange range_;
  const std::int64_t row_offset_;
  void* const dst_;
  const DType dtype_;
  RunningScan scan_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_RANGE_SINK_INL_H_
