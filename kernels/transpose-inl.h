// Transposed panels: kPanelRows rows of a matrix stored column after column, so that SIMD lanes run
// over rows and a sparse column index selects one contiguous vector.
//
//   panel[j * kPanelRows + i] = matrix[i][j]
#if defined(SLUICEWAY_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_TRANSPOSE_INL_H_
#undef SLUICEWAY_KERNELS_TRANSPOSE_INL_H_
#else
#define SLUICEWAY_KERNELS_TRANSPOSE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/convert-inl.h"
#include "kernels/projector_shapes.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PanelTag = hn::CappedTag<float, 8>;  // Lanes over rows; two or more vectors fill a panel.

#if HWY_TARGET != HWY_SCALAR

// Transposes four rows of four lanes, or two such sets in the two 128-bit blocks of a vector.
template <class V>
struct FourVectors {
  V a, b, c, d;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE FourVectors<V> transpose_blocks(D d, const FourVectors<V>& r) {
  const V ac_low = hn::InterleaveLower(d, r.a, r.c), ac_high = hn::InterleaveUpper(d, r.a, r.c);
  const V bd_low = hn::InterleaveLower(d, r.b, r.d), bd_high = hn::InterleaveUpper(d, r.b, r.d);
  return {hn::InterleaveLower(d, ac_low, bd_low), hn::InterleaveUpper(d, ac_low, bd_low),
          hn::InterleaveLower(d, ac_high, bd_high), hn::InterleaveUpper(d, ac_high, bd_high)};
}

using BlockTag = hn::CappedTag<float, 4>;

// Loads a 4-column piece of row `r`, and of row `r + 4` into the upper block if there is one.
template <typename T>
HWY_INLINE hn::Vec<PanelTag> load_pieces(const T* r, std::int64_t stride) {
  const BlockTag d4;
#if HWY_MAX_BYTES >= 32
  return hn::Combine(PanelTag(), load_f32(d4, r + 4 * stride), load_f32(d4, r));
#else
  (void)stride;
  return load_f32(d4, r);
#endif
}

HWY_INLINE void store_pieces(hn::Vec<PanelTag> v, float* r, std::int64_t stride) {
  const BlockTag d4;
#if HWY_MAX_BYTES >= 32
  hn::StoreU(hn::LowerHalf(d4, v), d4, r);
  hn::StoreU(hn::UpperHalf(d4, v), d4, r + 4 * stride);
#else
  (void)stride;
  hn::StoreU(v, d4, r);
#endif
}

#endif

// Fills rows beyond `rows` with zeros.
template <typename T>
HWY_INLINE void pack_panel(const T* m, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                           float* HWY_RESTRICT panel) {
  std::int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
  const PanelTag d;
  constexpr std::int64_t kLanes = HWY_MAX_BYTES >= 32 ? 8 : 4;
  if (rows == kPanelRows) {
    for (; j + 4 <= cols; j += 4) {
      for (std::int64_t i = 0; i < kPanelRows; i += kLanes) {
        const T* const r = m + i * stride + j;
        const auto columns = transpose_blocks(
            d, FourVectors<hn::Vec<PanelTag>>{
                   load_pieces(r, stride), load_pieces(r + stride, stride),
                   load_pieces(r + 2 * stride, stride), load_pieces(r + 3 * stride, stride)});
        float* const out = panel + j * kPanelRows + i;
        hn::StoreU(columns.a, d, out);
        hn::StoreU(columns.b, d, out + kPanelRows);
        hn::StoreU(columns.c, d, out + 2 * kPanelRows);
        hn::StoreU(columns.d, d, out + 3 * kPanelRows);
      }
    }
  }
#endif
  for (; j < cols; ++j) {
    for (std::int64_t i = 0; i < kPanelRows; ++i) {
      panel[j * kPanelRows + i] = i < rows ? to_float(m[i * stride + j]) : 0.0F;
    }
  }
}

// Writes all kPanelRows rows.
HWY_INLINE void unpack_panel(const float* HWY_RESTRICT panel, std::int64_t cols, float* m,
                             std::int64_t stride) {
  std::int64_t j = 0;
#if HWY_TARGET != HWY_SCALAR
  const PanelTag d;
  constexpr std::int64_t kLanes = HWY_MAX_BYTES >= 32 ? 8 : 4;
  for (; j + 4 <= cols; j += 4) {
    for (std::int64_t i = 0; i < kPanelRows; i += kLanes) {
      const float* const in = panel + j * kPanelRows + i;
      const auto rows = transpose_blocks(
          d, FourVectors<hn::Vec<PanelTag>>{hn::LoadU(d, in), hn::LoadU(d, in + kPanelRows),
                                            hn::LoadU(d, in + 2 * kPanelRows),
                                            hn::LoadU(d, in + 3 * kPanelRows)});
      float* const out = m + i * stride + j;
      store_pieces(rows.a, out, stride);
      store_pieces(rows.b, out + stride, stride);
      store_pieces(rows.c, out + 2 * stride, stride);
      store_pieces(rows.d, out + 3 * stride, stride);
    }
  }
#endif
  for (; j < cols; ++j) {
    for (std::int64_t i = 0; i < kPanelRows; ++i) m[i * stride + j] = panel[j * kPanelRows + i];
  }
}

// out[0 .. kPanelRows) = sum over `count` nonzeros of value * panel column `index`.
HWY_INLINE void gather_column(const float* panel, const std::int32_t* index, const float* value,
                              std::int64_t count, float* out) {
  const PanelTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < kPanelRows; i += 2 * lanes) {
    auto even = hn::Zero(d), odd = hn::Zero(d);
    for (std::int64_t e = 0; e < count; ++e) {
      const auto v = hn::Set(d, value[e]);
      const float* const column = panel + index[e] * kPanelRows + i;
      even = hn::MulAdd(v, hn::LoadU(d, column), even);
      odd = hn::MulAdd(v, hn::LoadU(d, column + lanes), odd);
    }
    hn::StoreU(even, d, out + i);
    hn::StoreU(odd, d, out + i + lanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_TRANSPOSE_INL_H_
