// One block of the scan, for kernels that look at what they pack; see overflow_scan.h.
#if defined(SLUICEWAY_KERNELS_OVERFLOW_SCAN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_OVERFLOW_SCAN_INL_H_
#undef SLUICEWAY_KERNELS_OVERFLOW_SCAN_INL_H_
#else
#define SLUICEWAY_KERNELS_OVERFLOW_SCAN_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/convert-inl.h"
#include "kernels/overflow_scan.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t kScanBlock = 4096;  // Elements; stays in the first-level cache.

struct BlockScan {
  double sum_squares;          // Of scale * x.
  std::uint32_t abs_max_bits;  // As f32 bits: finite < 0x7F800000 <= infinite < NaN.
};

// Sum of squares over vectors of f32, as four chains that hide the latency of an addition. Every
// kAdds additions to a chain the caller flushes it into a double.
template <class D>
class SquareSum {
 public:
  using V = hn::Vec<D>;
  static constexpr std::size_t kChains = 4;
  static constexpr std::size_t kAdds = 8;

  explicit SquareSum(D d) : s0_(hn::Zero(d)), s1_(s0_), s2_(s0_), s3_(s0_) {}

  HWY_INLINE void add(V x) { s0_ = hn::MulAdd(x, x, s0_); }
  HWY_INLINE void add(V x0, V x1, V x2, V x3) {
    s0_ = hn::MulAdd(x0, x0, s0_);
    s1_ = hn::MulAdd(x1, x1, s1_);
    s2_ = hn::MulAdd(x2, x2, s2_);
    s3_ = hn::MulAdd(x3, x3, s3_);
  }

  HWY_INLINE void flush() {
    const D d;
    const V sum = hn::Add(hn::Add(s0_, s1_), hn::Add(s2_, s3_));
#if HWY_TARGET == HWY_SCALAR
    total_ += static_cast<double>(hn::GetLane(sum));
#else
    const hn::Half<D> half;
    const hn::Rebind<double, hn::Half<D>> d64;
    const auto both = hn::Add(hn::PromoteTo(d64, hn::LowerHalf(half, sum)),
                              hn::PromoteTo(d64, hn::UpperHalf(half, sum)));
    total_ += hn::GetLane(hn::SumOfLanes(d64, both));
#endif
    s0_ = s1_ = s2_ = s3_ = hn::Zero(d);
  }

  double total() const { return total_; }

 private:
  V s0_, s1_, s2_, s3_;
  double total_ = 0.0;
};

// Running maximum of |x|, as integers, so that a NaN wins.
template <class DI>
class MagnitudeMax {
 public:
  using V = hn::Vec<DI>;

  explicit MagnitudeMax(DI di) : mask_(hn::Set(di, hwy::LimitsMax<hn::TFromD<DI>>())) {
    max0_ = max1_ = hn::Zero(di);
  }
  HWY_INLINE void add(V bits) { max0_ = hn::Max(max0_, hn::And(bits, mask_)); }
  HWY_INLINE void add(V bits0, V bits1) {
    add(bits0);
    max1_ = hn::Max(max1_, hn::And(bits1, mask_));
  }
  auto bits() const {
    HWY_ALIGN hn::TFromD<DI> lanes[hn::MaxLanes(DI())];
    hn::Store(hn::Max(max0_, max1_), DI(), lanes);
    return *std::max_element(lanes, lanes + hn::Lanes(DI()));
  }

 private:
  V mask_, max0_, max1_;
};

struct NoSink {
  HWY_INLINE void operator()(std::size_t, std::size_t) const {}
  template <class V>
  HWY_INLINE void operator()(std::size_t, const V&, std::size_t) const {}
};

// Scans up to kScanBlock elements, and hands each vector with its position to `sink(i, x, count)`,
// count lanes of which exist. Squares are of scale * x if `kScaled`.
template <bool kScaled, typename T, class Sink>
HWY_INLINE BlockScan scan_as_f32(const T* x, std::size_t n, float scale, const Sink& sink) {
  using D = hn::ScalableTag<float>;
  const D d;
  const hn::RebindToSigned<D> di;
  const std::size_t lanes = hn::Lanes(d), stride = SquareSum<D>::kChains * lanes;
  const auto s = hn::Set(d, scale);
  const auto scaled = [s](auto v) HWY_ATTR { return kScaled ? hn::Mul(v, s) : v; };
  SquareSum<D> sum(d);
  MagnitudeMax<decltype(di)> abs_max(di);
  std::size_t i = 0;
  while (i + stride <= n) {
    const std::size_t stop = HWY_MIN(n, i + SquareSum<D>::kAdds * stride);
    for (; i + stride <= stop; i += stride) {
      const auto x0 = load_f32(d, x + i), x1 = load_f32(d, x + i + lanes);
      const auto x2 = load_f32(d, x + i + 2 * lanes), x3 = load_f32(d, x + i + 3 * lanes);
      sum.add(scaled(x0), scaled(x1), scaled(x2), scaled(x3));
      abs_max.add(hn::BitCast(di, x0), hn::BitCast(di, x1));
      abs_max.add(hn::BitCast(di, x2), hn::BitCast(di, x3));
      sink(i, x0, lanes);
      sink(i + lanes, x1, lanes);
      sink(i + 2 * lanes, x2, lanes);
      sink(i + 3 * lanes, x3, lanes);
    }
    sum.flush();
  }
  for (; i < n; i += lanes) {
    const std::size_t count = HWY_MIN(n - i, lanes);
    const auto x0 = FirstLanes{count}.load(d, x + i);
    sum.add(scaled(x0));
    abs_max.add(hn::BitCast(di, x0));
    sink(i, x0, count);
  }
  sum.flush();
  return {sum.total(), static_cast<std::uint32_t>(abs_max.bits())};
}

#if HWY_TARGET != HWY_SCALAR

// Two vectors of f32 from one of 16 bits, in whatever order is cheapest: a sum does not care.
template <class D, class V16>
HWY_INLINE void unpack_pair(D d, V16 bits, const bf16*, hn::Vec<D>& x0, hn::Vec<D>& x1) {
  const U32<D> du;
  const auto pairs = hn::BitCast(du, bits);
  x0 = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
  x1 = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000U)));
}
template <class D, class V16>
HWY_INLINE void unpack_pair(D d, V16, const f16* x, hn::Vec<D>& x0, hn::Vec<D>& x1) {
  x0 = load_f32(d, x);
  x1 = load_f32(d, x + hn::Lanes(d));
}

// The maximum is taken of 16-bit codes, twice as many a vector.
template <bool kScaled, typename T>
class HalfScan {
 public:
  using D = hn::ScalableTag<float>;
  using D16 = hn::Repartition<std::int16_t, D>;
  static constexpr std::size_t kMaxStride = SquareSum<D>::kChains * hn::MaxLanes(D());

  explicit HalfScan(float scale) : scale_(hn::Set(D(), scale)), sum_(D()), abs_max_(D16()) {}

  HWY_INLINE void add(const T* x) {  // Four vectors' worth.
    const D d;
    const hn::Repartition<std::uint16_t, D> du16;
    const auto* codes = reinterpret_cast<const std::uint16_t*>(x);
    const auto low = hn::LoadU(du16, codes), high = hn::LoadU(du16, codes + hn::Lanes(du16));
    hn::Vec<D> x0, x1, x2, x3;
    unpack_pair(d, low, x, x0, x1);
    unpack_pair(d, high, x + hn::Lanes(du16), x2, x3);
    if constexpr (kScaled) {
      x0 = hn::Mul(x0, scale_), x1 = hn::Mul(x1, scale_);
      x2 = hn::Mul(x2, scale_), x3 = hn::Mul(x3, scale_);
    }
    sum_.add(x0, x1, x2, x3);
    abs_max_.add(hn::BitCast(D16(), low), hn::BitCast(D16(), high));
  }
  HWY_INLINE void flush() { sum_.flush(); }
  HWY_INLINE BlockScan result() const {
    const float abs_max = to_float(T{static_cast<std::uint16_t>(abs_max_.bits())});
    return {sum_.total(), std::bit_cast<std::uint32_t>(abs_max)};
  }

 private:
  hn::Vec<D> scale_;
  SquareSum<D> sum_;
  MagnitudeMax<D16> abs_max_;
};

// sink(i, count) hears of the elements [i, i + count) while they are in registers.
template <bool kScaled, typename T, class Sink>
HWY_INLINE BlockScan scan_halves(const T* x, std::size_t n, float scale, const Sink& sink) {
  using D = hn::ScalableTag<float>;
  using Scan = HalfScan<kScaled, T>;
  const std::size_t stride = SquareSum<D>::kChains * hn::Lanes(D());
  Scan scan(scale);
  std::size_t i = 0;
  while (i + stride <= n) {
    const std::size_t stop = HWY_MIN(n, i + SquareSum<D>::kAdds * stride);
    for (; i + stride <= stop; i += stride) {
      scan.add(x + i);
      sink(i, stride);
    }
    scan.flush();
  }
  if (i < n) {  // Zeros add nothing.
    T tail[Scan::kMaxStride] = {};
    std::memcpy(tail, x + i, (n - i) * sizeof(T));
    scan.add(tail);
    sink(i, n - i);
    scan.flush();
  }
  return scan.result();
}

#endif  // HWY_TARGET != HWY_SCALAR

template <bool kScaled, typename T, class Sink>
HWY_INLINE BlockScan scan_block(const T* x, std::size_t n, float scale, const Sink& sink) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 2) return scan_halves<kScaled>(x, n, scale, NoSink());
#endif
  return scan_as_f32<kScaled>(x, n, scale, sink);
}

// The total over blocks. The squares of a block whose maximum is far from 1 would overflow or
// vanish in f32: its sum is taken again, of values scaled by an exact power of two.
struct RunningScan {
  double sum_squares = 0.0;
  std::uint32_t abs_max_bits = 0;

  template <typename T, class Sink>
  HWY_INLINE void add(const T* x, std::size_t n, const Sink& sink) {
    add_block(scan_block<false>(x, n, 1.0F, sink), x, n);
  }

  // `block` is the scan of x, unscaled.
  template <typename T>
  HWY_INLINE void add_block(const BlockScan& block, const T* x, std::size_t n) {
    add_block(block, [=](float scale)
                         HWY_ATTR { return scan_block<true>(x, n, scale, NoSink()).sum_squares; });
  }

  // squares(scale) is the sum of squares of scale * x.
  template <class Squares>
  HWY_INLINE void add_block(const BlockScan& block, const Squares& squares) {
    constexpr float kLarge = 0x1p55F, kSmall = 0x1p-40F;
    const std::uint32_t bits = block.abs_max_bits;
    abs_max_bits = HWY_MAX(bits, abs_max_bits);
    if (bits >= std::bit_cast<std::uint32_t>(kLarge)) {  // Also infinities and NaN.
      sum_squares += squares(0x1p-100F) * 0x1p200;
    } else if (bits != 0 && bits < std::bit_cast<std::uint32_t>(kSmall)) {
      sum_squares += squares(0x1p100F) * 0x1p-200;
    } else {
      sum_squares += block.sum_squares;
    }
  }

  ScanResult result() const {
    return {abs_max_bits < 0x7F800000U, sum_squares, std::bit_cast<float>(abs_max_bits)};
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_OVERFLOW_SCAN_INL_H_
