// Rounds a piece of a gradient to the type in which it is kept, and scans what it wrote.
#if defined(SLUICEWAY_KERNELS_GRADIENT_COPY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_GRADIENT_COPY_INL_H_
#undef SLUICEWAY_KERNELS_GRADIENT_COPY_INL_H_
#else
#define SLUICEWAY_KERNELS_GRADIENT_COPY_INL_H_
#endif

#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "kernels/convert-inl.h"
#include "kernels/overflow_scan-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Writes x to dst, and returns the value that was written.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V store_written(D d, V x, float* dst) {
  hn::StoreU(x, d, dst);
  return x;
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V store_written(D d, V x, bf16* dst) {
  const auto bits = bf16_nearest_bits(d, x);
  store_bits(d, narrow(d, bits), dst);
  return hn::BitCast(d, hn::ShiftLeft<16>(bits));
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V store_written(D d, V x, f16* dst) {
  const auto bits = f16_nearest(d, x);
  store_bits(d, bits, dst);
  return f16_to_f32(d, bits);
}

// Does the same for two vectors, and replaces them with what was written.
template <class D, typename Dst, class V = hn::Vec<D>>
HWY_INLINE void store_written_pair(D d, V& a, V& b, Dst* dst) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<Dst, bf16>) {  // Narrowed together, unless a NaN must stay a NaN.
    if (HWY_LIKELY(hn::AllFalse(d, hn::Or(hn::IsNaN(a), hn::IsNaN(b))))) {
      const U32<D> du;
      const hn::Repartition<std::uint16_t, D> halves;
      const auto rounded = [du](V x) HWY_ATTR {
        const auto u = hn::BitCast(du, x);
        const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
        return hn::Add(u, hn::Add(odd, hn::Set(du, 0x7FFF)));
      };
      const auto ra = rounded(a), rb = rounded(b), upper = hn::Set(du, 0xFFFF0000U);
      hn::StoreU(hn::ConcatOdd(halves, hn::BitCast(halves, rb), hn::BitCast(halves, ra)), halves,
                 &dst->bits);
      a = hn::BitCast(d, hn::And(ra, upper));
      b = hn::BitCast(d, hn::And(rb, upper));
      return;
    }
  }
#endif
  a = store_written(d, a, dst);
  b = store_written(d, b, dst + hn::Lanes(d));
}

// Rounds pieces of a block into dst and scans them from registers: newly written data is not in the
// cache yet, and reading it again would wait for memory.
class WriteScan {
 public:
  WriteScan() : sum_(D()), abs_max_(DI()) {}

  template <typename Dst>
  HWY_INLINE void write(const float* x, Dst* dst, std::size_t n) {
    const D d;
    const std::size_t lanes = hn::Lanes(d), stride = 4 * lanes;
    Sum sum = sum_;  // Copies, which stay in registers: the compiler must assume that dst may
                     // overlap *this.
    Max abs_max = abs_max_;
    std::size_t i = 0, left = Sum::kAdds - adds_;
    while (i + stride <= n) {
      const std::size_t stop = HWY_MIN(n, i + left * stride), begin = i;
      for (; i + stride <= stop; i += stride) {
        auto x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
        auto x2 = hn::LoadU(d, x + i + 2 * lanes), x3 = hn::LoadU(d, x + i + 3 * lanes);
        store_written_pair(d, x0, x1, dst + i);
        store_written_pair(d, x2, x3, dst + i + 2 * lanes);
        sum.add(x0, x1, x2, x3);
        abs_max.add(hn::BitCast(DI(), x0), hn::BitCast(DI(), x1));
        abs_max.add(hn::BitCast(DI(), x2), hn::BitCast(DI(), x3));
      }
      left -= (i - begin) / stride;
      if (left == 0) {
        sum.flush();
        left = Sum::kAdds;
      }
    }
    for (; i < n; i += lanes) {  // At most three, and a partial one.
      const std::size_t count = HWY_MIN(n - i, lanes);
      HWY_ALIGN Dst written[hn::MaxLanes(D())];
      const auto x0 = store_written(d, FirstLanes{count}.load(d, x + i), written);
      std::memcpy(dst + i, written, count * sizeof(Dst));
      sum.add(x0);
      abs_max.add(hn::BitCast(DI(), x0));
      if (--left == 0) {
        sum.flush();
        left = Sum::kAdds;
      }
    }
    sum_ = sum;
    abs_max_ = abs_max;
    adds_ = Sum::kAdds - left;
  }

  // Returns the scan of everything written since the last call.
  HWY_INLINE BlockScan finish() {
    sum_.flush();
    const BlockScan block{sum_.total(), static_cast<std::uint32_t>(abs_max_.bits())};
    *this = WriteScan();
    return block;
  }

 private:
  using D = hn::ScalableTag<float>;
  using DI = hn::RebindToSigned<D>;
  using Sum = SquareSum<D>;
  using Max = MagnitudeMax<DI>;

  Sum sum_;
  Max abs_max_;
  std::size_t adds_ = 0;  // Additions to a chain since it was flushed.
};

// When both types are equal, a block is scanned as it is read.
template <typename T>
HWY_INLINE BlockScan copy_block(const T* src, T* dst, std::size_t n) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 2) {
    return scan_halves<false>(src, n, 1.0F, [=](std::size_t i, std::size_t count) HWY_ATTR {
      std::memcpy(dst + i, src + i, count * sizeof(T));
    });
  }
#endif
  std::memcpy(dst, src, n * sizeof(T));
  return scan_block<false>(src, n, 1.0F, NoSink());
}

template <typename Src, typename Dst>
HWY_INLINE ScanResult copy_and_scan(const Src* src, Dst* dst, std::size_t n) {
  RunningScan total;
  for (std::size_t i = 0; i < n; i += kScanBlock) {
    const std::size_t count = HWY_MIN(n - i, kScanBlock);
    Dst* const to = dst + i;
    if constexpr (std::is_same_v<Src, Dst> && sizeof(Dst) == 2) {
      total.add_block(copy_block(src + i, to, count), static_cast<const Dst*>(to), count);
    } else {
      WriteScan scan;
      scan.write(src + i, to, count);
      total.add_block(scan.finish(), static_cast<const Dst*>(to), count);
    }
  }
  return total.result();
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_GRADIENT_COPY_INL_H_
