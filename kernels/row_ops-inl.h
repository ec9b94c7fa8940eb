// Row operations that the projector kernels share: scaling, converting, adding multiples of rows,
// and prefetching them.
#if defined(SLUICEWAY_KERNELS_ROW_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_ROW_OPS_INL_H_
#undef SLUICEWAY_KERNELS_ROW_OPS_INL_H_
#else
#define SLUICEWAY_KERNELS_ROW_OPS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/base/view.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RowTag = hn::CappedTag<float, 16>;

// Calls f(typed view of g).
template <typename F>
HWY_INLINE void with_type(const AnyMatrix& g, const F& f) {
  switch (g.dtype) {
    case DType::kF32:
      return f(g.as<const float>());
    case DType::kF16:
      return f(g.as<const f16>());
    case DType::kBF16:
      return f(g.as<const bf16>());
  }
}

// Prefetches rows [i, i + rows) of columns [j, j + cols), all rows together: memory serves several
// streams at once faster than one after another. Uses the second-level cache, which leaves the few
// fill buffers of the first to the computation. Does not pay off if the second-level cache holds
// the matrix anyway.
HWY_INLINE void prefetch_piece(const AnyMatrix& m, std::int64_t i, std::int64_t rows,
                               std::int64_t j, std::int64_t cols) {
  const auto elem = static_cast<std::int64_t>(size_bytes(m.dtype));
  constexpr std::int64_t kCacheBytes = 512 << 10, kLineBytes = 64;
  if (m.rows * m.stride * elem <= kCacheBytes) return;
  const char* const first = static_cast<const char*>(m.data) + (i * m.stride + j) * elem;
  for (std::int64_t at = 0; at < cols * elem; at += kLineBytes) {
    for (std::int64_t x = 0; x < rows; ++x) {
      __builtin_prefetch(first + x * m.stride * elem + at, 0, 2);
    }
  }
}

template <typename T>
HWY_INLINE void convert_row(const T* from, std::int64_t cols, float* HWY_RESTRICT to) {
  const RowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  for (; j + lanes <= cols; j += lanes) hn::StoreU(load_f32(d, from + j), d, to + j);
  for (; j < cols; ++j) to[j] = to_float(from[j]);
}

// y += a x
template <typename T>
HWY_INLINE void add_multiple(float a, const T* HWY_RESTRICT x, std::int64_t cols,
                             float* HWY_RESTRICT y) {
  const RowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto va = hn::Set(d, a);
  std::int64_t j = 0;
  for (; j + lanes <= cols; j += lanes) {
    hn::StoreU(hn::MulAdd(va, load_f32(d, x + j), hn::LoadU(d, y + j)), d, y + j);
  }
  for (; j < cols; ++j) y[j] += a * to_float(x[j]);
}

// S <- beta S; beta = 0 overwrites whatever was there.
HWY_INLINE void scale_matrix(MatrixView<float> s, float beta) {
  if (beta == 1.0F) return;
  const RowTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < s.rows; ++i) {
    float* const row = s.row(i);
    if (beta == 0.0F) {
      std::memset(row, 0, static_cast<std::size_t>(s.cols) * sizeof(float));
      continue;
    }
    std::int64_t j = 0;
    for (; j + lanes <= s.cols; j += lanes) {
      hn::StoreU(hn::Mul(hn::Set(d, beta), hn::LoadU(d, row + j)), d, row + j);
    }
    for (; j < s.cols; ++j) row[j] *= beta;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_ROW_OPS_INL_H_
