// Updates a piece of a row: W <- round(decay W + alpha x), for each rounding of decompress.h.
#if defined(SLUICEWAY_KERNELS_WEIGHT_UPDATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_WEIGHT_UPDATE_INL_H_
#undef SLUICEWAY_KERNELS_WEIGHT_UPDATE_INL_H_
#else
#define SLUICEWAY_KERNELS_WEIGHT_UPDATE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/base/view.h"
#include "kernels/convert-inl.h"
#include "kernels/decompress.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using UpdateTag = hn::CappedTag<float, 16>;

class UpdateSink {
 public:
  UpdateSink(const AnyMatrix& w, MatrixView<std::uint16_t> low, const WeightUpdate& update)
      : w_(w), low_(low), update_(update), noise_(update.key) {}

  HWY_INLINE static constexpr bool wants(std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
    return true;
  }
  HWY_INLINE void touch(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    prefetch_piece(w_, i, rows, j, cols);
  }

  HWY_INLINE void done(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {}

  HWY_INLINE void take(std::int64_t i, std::int64_t j, const float* x, std::int64_t count) {
    const std::int64_t at = i * w_.stride + j;
    switch (w_.dtype) {
      case DType::kF32:
        return nearest(static_cast<float*>(w_.data) + at, x, count);
      case DType::kF16:
        return nearest(static_cast<f16*>(w_.data) + at, x, count);
      case DType::kBF16:
        break;
    }
    bf16* const w = static_cast<bf16*>(w_.data) + at;
    switch (update_.rounding) {
      case Rounding::kNearest:
        return nearest(w, x, count);
      case Rounding::kStochastic:
        return stochastic(w, x, count, (update_.row_offset + i) * w_.cols + j);
      case Rounding::kResidual:
        return residual(w, low_.row(i) + j, x, count);
    }
  }

 private:
  using V = hn::Vec<UpdateTag>;

  HWY_INLINE V updated(V w, V x) const {
    const UpdateTag d;
    return hn::MulAdd(hn::Set(d, update_.alpha), x, hn::Mul(hn::Set(d, update_.decay), w));
  }

  // Calls f(offset) for whole vectors; the remainder goes through copies as wide as a vector.
  template <typename T>
  HWY_INLINE void nearest(T* w, const float* x, std::int64_t count) const {
    const UpdateTag d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes) {
      store_nearest(d, updated(load_f32(d, w + j), hn::LoadU(d, x + j)), w + j);
    }
    if (j == count) return;
    T tail[hn::MaxLanes(d)] = {};
    float tail_x[hn::MaxLanes(d)] = {};
    copy(w + j, tail, count - j);
    copy(x + j, tail_x, count - j);
    store_nearest(d, updated(load_f32(d, tail), hn::LoadU(d, tail_x)), tail);
    copy(tail, w + j, count - j);
  }

  HWY_INLINE void stochastic(bf16* w, const float* x, std::int64_t count,
                             std::int64_t index) const {
    const UpdateTag d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    constexpr std::int64_t kPiece = 256;
    alignas(64) std::uint16_t bits[kPiece] = {};
    for (std::int64_t first = 0; first < count; first += kPiece) {
      const std::int64_t piece = std::min(kPiece, count - first);
      noise_.fill(static_cast<std::uint64_t>(index + first), bits, static_cast<std::size_t>(piece));
      std::int64_t j = 0;
      for (; j + 2 * lanes <= piece; j += 2 * lanes) {
        bf16* const to = w + first + j;
        const float* const from = x + first + j;
        store_stochastic_pair(d, updated(load_f32(d, to), hn::LoadU(d, from)),
                              updated(load_f32(d, to + lanes), hn::LoadU(d, from + lanes)),
                              bits + j, to);
      }
      for (; j + lanes <= piece; j += lanes) {
        bf16* const to = w + first + j;
        store_stochastic(d, updated(load_f32(d, to), hn::LoadU(d, x + first + j)), bits + j, to);
      }
      if (j == piece) continue;
      bf16 tail[hn::MaxLanes(d)] = {};
      float tail_x[hn::MaxLanes(d)] = {};
      std::uint16_t tail_bits[hn::MaxLanes(d)] = {};
      copy(w + first + j, tail, piece - j);
      copy(x + first + j, tail_x, piece - j);
      copy(bits + j, tail_bits, piece - j);
      store_stochastic(d, updated(load_f32(d, tail), hn::LoadU(d, tail_x)), tail_bits, tail);
      copy(tail, w + first + j, piece - j);
    }
  }

  HWY_INLINE void residual(bf16* w, std::uint16_t* low, const float* x, std::int64_t count) const {
    const UpdateTag d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes) residual_vector(w + j, low + j, x + j);
    if (j == count) return;
    bf16 tail[hn::MaxLanes(d)] = {};
    std::uint16_t tail_low[hn::MaxLanes(d)] = {};
    float tail_x[hn::MaxLanes(d)] = {};
    copy(w + j, tail, count - j);
    copy(low + j, tail_low, count - j);
    copy(x + j, tail_x, count - j);
    residual_vector(tail, tail_low, tail_x);
    copy(tail, w + j, count - j);
    copy(tail_low, low + j, count - j);
  }

  // join_residual(), then residual_hi() and residual_low(), of decompress.h.
  HWY_INLINE void residual_vector(bf16* w, std::uint16_t* low, const float* x) const {
    const UpdateTag d;
    const U32<UpdateTag> du;
    const auto lower = widen(d, hn::LoadU(U16<UpdateTag>(), low));
    const auto upper = hn::Sub(widen(d, load_bits(d, w)), hn::ShiftRight<15>(lower));
    const auto joined = hn::BitCast(d, hn::Or(hn::ShiftLeft<16>(upper), lower));
    const auto bits = hn::BitCast(du, updated(joined, hn::LoadU(d, x)));
    const auto new_lower = hn::And(bits, hn::Set(du, 0xFFFF));
    const auto round_up = hn::ShiftRight<15>(new_lower);
    const auto new_upper =
        hn::And(hn::Add(hn::ShiftRight<16>(bits), round_up), hn::Set(du, 0xFFFF));
    store_bits(d, narrow(d, new_upper), w);
    hn::StoreU(narrow(d, new_lower), U16<UpdateTag>(), low);
  }

  template <typename T>
  static HWY_INLINE void copy(const T* from, T* to, std::int64_t count) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
  }

  const AnyMatrix w_;
  const MatrixView<std::uint16_t> low_;
  const WeightUpdate update_;
  const NoiseStream noise_;
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_WEIGHT_UPDATE_INL_H_
