// Rounding a piece of a gradient into the type it is kept in, and scanning what was written.
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

template <typename Src, typename Dst>
HWY_INLINE void round_into(const Src* src, Dst* dst, std::size_t n) {
  if constexpr (std::is_same_v<Src, Dst>) {
    std::memcpy(dst, src, n * sizeof(Dst));
  } else {
    const hn::ScalableTag<float> d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      const auto x0 = load_f32(d, src + i), x1 = load_f32(d, src + i + lanes);
      store_nearest(d, x0, dst + i);
      store_nearest(d, x1, dst + i + lanes);
    }
    for (; i < n; i += lanes) {
      const FirstLanes some{HWY_MIN(n - i, lanes)};
      some.store(d, some.load(d, src + i), dst + i);
    }
  }
}

// In blocks that are still in the first-level cache when they are scanned.
template <typename Src, typename Dst>
HWY_INLINE void round_and_scan(const Src* src, Dst* dst, std::size_t n, RunningScan& total) {
  for (std::size_t i = 0; i < n; i += kScanBlock) {
    const std::size_t count = HWY_MIN(n - i, kScanBlock);
    round_into(src + i, dst + i, count);
    total.add(static_cast<const Dst*>(dst + i), count, NoSink());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_GRADIENT_COPY_INL_H_
