// Takes pieces of a matrix; writes and scans the elements that lie in a range.
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

// Elements [first, last) of a row-major matrix of `cols` columns; not empty.
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
    if (bottom - top > 2) return true;  // A whole row lies between the first and the last.
    for (std::int64_t row = top; row < bottom; ++row) {
      const std::int64_t begin = row * range_.cols + j;
      if (begin < range_.last && begin + cols > range_.first) return true;
    }
    return false;
  }

  // Prefetches all rows of the piece together into the second-level cache: see prefetch_piece().
  HWY_INLINE void touch(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    constexpr std::int64_t kLineBytes = 64;
    const auto elem = static_cast<std::int64_t>(size_bytes(dtype_));
    for (std::int64_t row = i; row < i + rows; ++row) {
      const Part part = part_of(row, j, cols);
      const char* const first = static_cast<const char*>(dst_) + part.at * elem;
      const std::int64_t bytes = static_cast<std::int64_t>(part.size) * elem;
      for (std::int64_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(first + at, 1, 2);
    }
  }

  HWY_INLINE void take(std::int64_t i, std::int64_t j, const float* x, std::int64_t count) {
    const Part part = part_of(i, j, count);
    if (part.size == 0) return;
    with_dst([&](auto* dst) HWY_ATTR { piece_.write(x + part.skip, dst + part.at, part.size); });
  }

  HWY_INLINE void done(std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t cols) {
    total_.add_block(piece_.finish(), [&](float scale) HWY_ATTR {
      double squares = 0;
      with_dst([&](auto* dst) HWY_ATTR {
        for (std::int64_t row = i; row < i + rows; ++row) {
          const Part part = part_of(row, j, cols);
          squares += scan_block<true>(dst + part.at, part.size, scale, NoSink()).sum_squares;
        }
      });
      return squares;
    });
  }

  ScanResult result() const { return total_.result(); }

 private:
  // The part of `count` elements from (i, j) on that lies in the range: its place there and in dst.
  struct Part {
    std::int64_t skip, at;
    std::size_t size;
  };
  HWY_INLINE Part part_of(std::int64_t i, std::int64_t j, std::int64_t count) const {
    const std::int64_t begin = (row_offset_ + i) * range_.cols + j;
    const std::int64_t from = std::max(begin, range_.first);
    const std::int64_t to = std::min(begin + count, range_.last);
    if (from >= to) return {0, 0, 0};
    return {from - begin, from - range_.first, static_cast<std::size_t>(to - from)};
  }

  template <class F>
  HWY_INLINE void with_dst(const F& f) const {
    switch (dtype_) {
      case DType::kF32:
        return f(static_cast<float*>(dst_));
      case DType::kF16:
        return f(static_cast<f16*>(dst_));
      case DType::kBF16:
        return f(static_cast<bf16*>(dst_));
    }
  }

  const ElementRange range_;
  const std::int64_t row_offset_;
  void* const dst_;
  const DType dtype_;
  WriteScan piece_;
  RunningScan total_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_RANGE_SINK_INL_H_
