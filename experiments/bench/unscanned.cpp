#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experiments/bench/unscanned.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cstring>

#include "experiments/bench/unscanned.h"
#include "kernels/decompress-inl.h"
#include "kernels/range_sink-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway::bench {
namespace HWY_NAMESPACE {
namespace sw = sluiceway::HWY_NAMESPACE;

// Writes as WriteScan does.
template <typename Dst>
HWY_INLINE void round_into(const float* x, Dst* y, std::size_t n) {
  const sw::hn::ScalableTag<float> d;
  const std::size_t lanes = sw::hn::Lanes(d);
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    auto x0 = sw::load_f32(d, x + i), x1 = sw::load_f32(d, x + i + lanes);
    sw::store_written_pair(d, x0, x1, y + i);
  }
  for (; i < n; i += lanes) {
    const sw::FirstLanes some{HWY_MIN(n - i, lanes)};
    some.store(d, some.load(d, x + i), y + i);
  }
}

// Passes over all rows and columns of a matrix, as over a range of it.
class UnscannedSink {
 public:
  UnscannedSink(bf16* dst, std::int64_t rows, std::int64_t cols)
      : range_({0, rows * cols, cols}, 0, dst, DType::kBF16), dst_(dst), cols_(cols) {}

  HWY_INLINE bool wants(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    return range_.wants(i, rows, j, cols);
  }
  HWY_INLINE void touch(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    range_.touch(i, rows, j, cols);
  }
  HWY_INLINE void done(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {}
  HWY_INLINE void take(std::int64_t i, std::int64_t j, const float* x, std::int64_t count) const {
    round_into(x, dst_ + i * cols_ + j, static_cast<std::size_t>(count));
  }

 private:
  const sw::RangeSink range_;
  bf16* const dst_;
  const std::int64_t cols_;
};

void plain_f32(const float* x, float* y, std::size_t n) { std::memcpy(y, x, n * sizeof *y); }
void plain_f16(const f16* x, f16* y, std::size_t n) { std::memcpy(y, x, n * sizeof *y); }
void plain_bf16(const bf16* x, bf16* y, std::size_t n) { std::memcpy(y, x, n * sizeof *y); }
void plain_to_f16(const float* x, f16* y, std::size_t n) { round_into(x, y, n); }
void plain_to_bf16(const float* x, bf16* y, std::size_t n) { round_into(x, y, n); }

void plain_sparse(const AnyMatrix& d, const SparseRows& p, const SparseRows& q, bf16* dst,
                  std::span<float> scratch) {
  UnscannedSink sink(dst, p.rows, q.rows);
  sw::expand(d, p, q, scratch, sink);
}

void plain_blocks(const AnyMatrix& d, const BlockRows& p, const BlockRows& q, bf16* dst,
                  std::span<float> scratch) {
  UnscannedSink sink(dst, p.rows, q.rows);
  sw::expand(d, p, q, scratch, sink);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway::bench {

HWY_EXPORT(plain_f32);
HWY_EXPORT(plain_f16);
HWY_EXPORT(plain_bf16);
HWY_EXPORT(plain_to_f16);
HWY_EXPORT(plain_to_bf16);
HWY_EXPORT(plain_sparse);
HWY_EXPORT(plain_blocks);

template <>
void unscanned_copy(std::span<const float> src, std::span<float> dst) {
  HWY_DYNAMIC_DISPATCH(plain_f32)(src.data(), dst.data(), src.size());
}
template <>
void unscanned_copy(std::span<const f16> src, std::span<f16> dst) {
  HWY_DYNAMIC_DISPATCH(plain_f16)(src.data(), dst.data(), src.size());
}
template <>
void unscanned_copy(std::span<const bf16> src, std::span<bf16> dst) {
  HWY_DYNAMIC_DISPATCH(plain_bf16)(src.data(), dst.data(), src.size());
}
template <>
void unscanned_copy(std::span<const float> src, std::span<f16> dst) {
  HWY_DYNAMIC_DISPATCH(plain_to_f16)(src.data(), dst.data(), src.size());
}
template <>
void unscanned_copy(std::span<const float> src, std::span<bf16> dst) {
  HWY_DYNAMIC_DISPATCH(plain_to_bf16)(src.data(), dst.data(), src.size());
}

void unscanned_rows(const AnyMatrix& d, const SparseRows& p, const SparseRows& q,
                    std::int64_t first, std::int64_t last, bf16* dst, std::span<float> scratch) {
  HWY_DYNAMIC_DISPATCH(plain_sparse)(d, p.row_range(first, last), q, dst, scratch);
}

void unscanned_rows(const AnyMatrix& d, const BlockRows& p, const BlockRows& q, std::int64_t first,
                    std::int64_t last, bf16* dst, std::span<float> scratch) {
  const std::int64_t group = first / p.block;
  const BlockRows part = p.group_range(group, (last + p.block - 1) / p.block);
  const AnyMatrix rows{static_cast<float*>(d.data) + group * p.kept * d.stride, part.cols, d.cols,
                       d.stride, d.dtype};
  HWY_DYNAMIC_DISPATCH(plain_blocks)(rows, part, q, dst, scratch);
}

}  // namespace sluiceway::bench

#endif  // HWY_ONCE
