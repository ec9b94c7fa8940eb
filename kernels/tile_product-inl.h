// Small dense products for block projectors, with lanes over the columns of the result.
//
//   C[x][j] = sum over y < ys of A(x, y) B[y][j]      A(x, y) = a[x * ax + y * ay]
//
// A kernel computes a few rows x and one or two vectors of columns j; tile_product() covers a tile
// with kernels. `out` decides the initial value of a sum and where the result goes.
//
// Numerics: f32, y ascending, fused multiply-add where the processor has it.
#if defined(SLUICEWAY_KERNELS_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_TILE_PRODUCT_INL_H_
#undef SLUICEWAY_KERNELS_TILE_PRODUCT_INL_H_
#else
#define SLUICEWAY_KERNELS_TILE_PRODUCT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "kernels/convert-inl.h"
#include "kernels/projector_shapes.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct TileA {
  const float* a;
  std::int64_t ax, ay;

  TileA row(std::int64_t x) const { return {a + x * ax, ax, ay}; }
  TileA col(std::int64_t y) const { return {a + y * ay, ax, ay}; }
};

template <typename T>
struct TileB {
  const T* b;
  std::int64_t stride;

  TileB row(std::int64_t y) const { return {b + y * stride, stride}; }
  TileB col(std::int64_t j) const { return {b + j, stride}; }
};

// Rows of B that lie far apart are separate streams of memory, and the processor's prefetcher loses
// track of some. The first kernel that reads a line therefore prefetches kAheadBytes ahead of it.
inline constexpr std::size_t kAheadBytes = 256;

template <std::size_t kBytes, typename T>
HWY_INLINE void prefetch_ahead(const T* p) {
  // Computed as an integer: the line may lie beyond the array, which a prefetch tolerates.
  const auto ahead = reinterpret_cast<std::uintptr_t>(p) + kAheadBytes;
  const auto line = [](std::uintptr_t address) {
    return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
  };
  __builtin_prefetch(line(ahead));
  if constexpr (kBytes > 64) __builtin_prefetch(line(ahead + 64));
}

// ---- The result C -------------------------------------------------------------------------------
//
// start() returns the initial value of a sum, put() takes the finished vector. Rows of C are padded
// to whole vectors.

struct StoreOut {
  float* c;
  std::int64_t stride;

  StoreOut row(std::int64_t x) const { return {c + x * stride, stride}; }
  template <class D>
  HWY_INLINE hn::Vec<D> start(D d, std::int64_t /*x*/, std::int64_t /*j*/) const {
    return hn::Zero(d);
  }
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE void put(D d, std::int64_t x, std::int64_t j, V v) const {
    hn::StoreU(v, d, c + x * stride + j);
  }
};

struct AddOut {
  float* c;
  std::int64_t stride;

  template <class D>
  HWY_INLINE hn::Vec<D> start(D d, std::int64_t x, std::int64_t j) const {
    return hn::LoadU(d, c + x * stride + j);
  }
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE void put(D d, std::int64_t x, std::int64_t j, V v) const {
    hn::StoreU(v, d, c + x * stride + j);
  }
};

// AVX-512 has 32 vector registers.
#undef SLUICEWAY_HWY_MANY_REGISTERS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define SLUICEWAY_HWY_MANY_REGISTERS true
#else
#define SLUICEWAY_HWY_MANY_REGISTERS false
#endif
inline constexpr bool kManyRegisters = SLUICEWAY_HWY_MANY_REGISTERS;

// ---- Kernels ------------------------------------------------------------------------------------
//
// Not inlined, so that pointers and sums have all the registers.

// Sums one row by two adjacent vectors.
template <class V>
struct RowSums {
  V left, right;

  HWY_INLINE void add(V a, V b_left, V b_right) {
    left = hn::MulAdd(a, b_left, left);
    right = hn::MulAdd(a, b_right, right);
  }
};

template <class D, class Out>
HWY_INLINE RowSums<hn::Vec<D>> start_row(D d, const Out& out, std::int64_t x, std::int64_t j) {
  return {out.start(d, x, j), out.start(d, x, j + static_cast<std::int64_t>(hn::Lanes(d)))};
}

template <class D, class Out>
HWY_INLINE void put_row(D d, const Out& out, std::int64_t x, std::int64_t j,
                        const RowSums<hn::Vec<D>>& c) {
  out.put(d, x, j, c.left);
  out.put(d, x, j + static_cast<std::int64_t>(hn::Lanes(d)), c.right);
}

// Sums four rows by `pairs` times two vectors: eight sums, as many as two units of four cycles keep
// in flight.
template <bool kAhead, class D, typename T, class Out>
HWY_NOINLINE void product_4x2(D d, TileA a, TileB<T> b, Out out, std::int64_t x, std::int64_t j,
                              std::int64_t ys, std::int64_t pairs) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t ay = a.ay, stride = b.stride;
  const float* a0 = a.a;
  const float* a1 = a0 + a.ax;
  const float* a2 = a1 + a.ax;
  const float* a3 = a2 + a.ax;
  const T* first = b.b;
  for (; pairs > 0; --pairs, j += 2 * lanes, first += 2 * lanes) {
    auto c0 = start_row(d, out, x, j), c1 = start_row(d, out, x + 1, j);
    auto c2 = start_row(d, out, x + 2, j), c3 = start_row(d, out, x + 3, j);
    const T* bp = first;
    std::int64_t at = 0;
    for (std::int64_t y = 0; y < ys; ++y, at += ay, bp += stride) {
      if constexpr (kAhead) prefetch_ahead<2 * hn::MaxLanes(D()) * sizeof(T)>(bp);
      const auto b0 = load_f32(d, bp), b1 = load_f32(d, bp + lanes);
      c0.add(hn::Set(d, a0[at]), b0, b1);
      c1.add(hn::Set(d, a1[at]), b0, b1);
      c2.add(hn::Set(d, a2[at]), b0, b1);
      c3.add(hn::Set(d, a3[at]), b0, b1);
    }
    put_row(d, out, x, j, c0);
    put_row(d, out, x + 1, j, c1);
    put_row(d, out, x + 2, j, c2);
    put_row(d, out, x + 3, j, c3);
  }
}

// Sums eight rows by `pairs` times two vectors, on targets with registers for sixteen sums: B is
// read and widened half as often.
template <bool kAhead, class D, typename T, class Out>
HWY_NOINLINE void product_8x2(D d, TileA a, TileB<T> b, Out out, std::int64_t x, std::int64_t j,
                              std::int64_t ys, std::int64_t pairs) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t ax = a.ax, ay = a.ay, stride = b.stride;
  const T* first = b.b;
  for (; pairs > 0; --pairs, j += 2 * lanes, first += 2 * lanes) {
    auto c0 = start_row(d, out, x, j), c1 = start_row(d, out, x + 1, j);
    auto c2 = start_row(d, out, x + 2, j), c3 = start_row(d, out, x + 3, j);
    auto c4 = start_row(d, out, x + 4, j), c5 = start_row(d, out, x + 5, j);
    auto c6 = start_row(d, out, x + 6, j), c7 = start_row(d, out, x + 7, j);
    const T* bp = first;
    const float* low = a.a;
    const float* high = a.a + 4 * ax;
    for (std::int64_t y = 0; y < ys; ++y, low += ay, high += ay, bp += stride) {
      if constexpr (kAhead) prefetch_ahead<2 * hn::MaxLanes(D()) * sizeof(T)>(bp);
      const auto b0 = load_f32(d, bp), b1 = load_f32(d, bp + lanes);
      c0.add(hn::Set(d, low[0]), b0, b1);
      c1.add(hn::Set(d, low[ax]), b0, b1);
      c2.add(hn::Set(d, low[2 * ax]), b0, b1);
      c3.add(hn::Set(d, low[3 * ax]), b0, b1);
      c4.add(hn::Set(d, high[0]), b0, b1);
      c5.add(hn::Set(d, high[ax]), b0, b1);
      c6.add(hn::Set(d, high[2 * ax]), b0, b1);
      c7.add(hn::Set(d, high[3 * ax]), b0, b1);
    }
    put_row(d, out, x, j, c0);
    put_row(d, out, x + 1, j, c1);
    put_row(d, out, x + 2, j, c2);
    put_row(d, out, x + 3, j, c3);
    put_row(d, out, x + 4, j, c4);
    put_row(d, out, x + 5, j, c5);
    put_row(d, out, x + 6, j, c6);
    put_row(d, out, x + 7, j, c7);
  }
}

// Sums eight rows by one vector.
template <class D, typename T, class Out>
HWY_NOINLINE void product_8x1(D d, TileA a, TileB<T> b, Out out, std::int64_t x, std::int64_t j,
                              std::int64_t ys) {
  auto c0 = out.start(d, x, j), c1 = out.start(d, x + 1, j), c2 = out.start(d, x + 2, j);
  auto c3 = out.start(d, x + 3, j), c4 = out.start(d, x + 4, j), c5 = out.start(d, x + 5, j);
  auto c6 = out.start(d, x + 6, j), c7 = out.start(d, x + 7, j);
  const std::int64_t ax = a.ax, ay = a.ay, stride = b.stride;
  const float* low = a.a;
  const float* high = a.a + 4 * ax;
  const T* bp = b.b;
  for (std::int64_t y = 0; y < ys; ++y, low += ay, high += ay, bp += stride) {
    const auto b0 = load_f32(d, bp);
    c0 = hn::MulAdd(hn::Set(d, low[0]), b0, c0);
    c1 = hn::MulAdd(hn::Set(d, low[ax]), b0, c1);
    c2 = hn::MulAdd(hn::Set(d, low[2 * ax]), b0, c2);
    c3 = hn::MulAdd(hn::Set(d, low[3 * ax]), b0, c3);
    c4 = hn::MulAdd(hn::Set(d, high[0]), b0, c4);
    c5 = hn::MulAdd(hn::Set(d, high[ax]), b0, c5);
    c6 = hn::MulAdd(hn::Set(d, high[2 * ax]), b0, c6);
    c7 = hn::MulAdd(hn::Set(d, high[3 * ax]), b0, c7);
  }
  out.put(d, x, j, c0);
  out.put(d, x + 1, j, c1);
  out.put(d, x + 2, j, c2);
  out.put(d, x + 3, j, c3);
  out.put(d, x + 4, j, c4);
  out.put(d, x + 5, j, c5);
  out.put(d, x + 6, j, c6);
  out.put(d, x + 7, j, c7);
}

template <class D, typename T, class Out>
HWY_NOINLINE void product_1x1(D d, TileA a, TileB<T> b, Out out, std::int64_t x, std::int64_t j,
                              std::int64_t ys) {
  auto sum = out.start(d, x, j);
  for (std::int64_t y = 0; y < ys; ++y) {
    sum = hn::MulAdd(hn::Set(d, a.a[y * a.ay]), load_f32(d, b.b + y * b.stride), sum);
  }
  out.put(d, x, j, sum);
}

// Sums xs rows by `vectors` vectors of columns. Reads B in strips of about 64 columns, which stay
// in the first-level cache until all rows of A have used them.
template <bool kAhead, class D, typename T, class Out>
HWY_INLINE void tile_product(D d, const TileA& a, const TileB<T>& b, const Out& out,
                             std::int64_t xs, std::int64_t ys, std::int64_t vectors) {
  constexpr std::int64_t kStripPairs = 4;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t j = 0;
  while (vectors >= 2) {
    const std::int64_t pairs = std::min(kStripPairs, vectors / 2);
    std::int64_t x = 0;
    if constexpr (kManyRegisters) {
      if (xs >= 8) {
        product_8x2<kAhead>(d, a, b.col(j), out, 0, j, ys, pairs);
        for (x = 8; x + 8 <= xs; x += 8) {
          product_8x2<false>(d, a.row(x), b.col(j), out, x, j, ys, pairs);
        }
      }
    }
    if (x == 0 && xs >= 4) {
      product_4x2<kAhead>(d, a, b.col(j), out, 0, j, ys, pairs);
      x = 4;
    }
    for (; x + 4 <= xs; x += 4) {
      product_4x2<false>(d, a.row(x), b.col(j), out, x, j, ys, pairs);
    }
    for (; x < xs; ++x) {
      for (std::int64_t v = 0; v < 2 * pairs; ++v) {
        const std::int64_t at = j + v * lanes;
        product_1x1(d, a.row(x), b.col(at), out, x, at, ys);
      }
    }
    vectors -= 2 * pairs;
    j += 2 * pairs * lanes;
  }
  if (vectors == 0) return;
  std::int64_t x = 0;
  for (; x + 8 <= xs; x += 8) product_8x1(d, a.row(x), b.col(j), out, x, j, ys);
  for (; x < xs; ++x) product_1x1(d, a.row(x), b.col(j), out, x, j, ys);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_TILE_PRODUCT_INL_H_
