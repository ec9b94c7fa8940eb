// The formula of adam.h on vectors, and the four ways of loading and storing a weight around it.
#if defined(SLUICEWAY_KERNELS_ADAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICEWAY_KERNELS_ADAM_INL_H_
#undef SLUICEWAY_KERNELS_ADAM_INL_H_
#else
#define SLUICEWAY_KERNELS_ADAM_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/adam.h"
#include "kernels/adam_coefficients.h"
#include "kernels/convert-inl.h"
#include "kernels/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
struct AdamFormula {
  using V = hn::Vec<D>;

  AdamFormula(D d, const AdamCoefficients& c)
      : scale(hn::Set(d, c.grad_scale)),
        one_minus_beta1(hn::Set(d, c.one_minus_beta1)),
        beta2(hn::Set(d, c.beta2)),
        one_minus_beta2(hn::Set(d, c.one_minus_beta2)),
        inverse_correction1(hn::Set(d, c.inverse_correction1)),
        inverse_sqrt_correction2(hn::Set(d, c.inverse_sqrt_correction2)),
        eps(hn::Set(d, c.eps)),
        keep(hn::Set(d, c.keep)),
        minus_lr(hn::Set(d, c.minus_lr)) {}

  // Advances m by the raw gradient g; returns the scaled gradient.
  HWY_INLINE V advance_first(V g, V& m) const {
    const V scaled = hn::Mul(g, scale);
    m = hn::MulAdd(one_minus_beta1, hn::Sub(scaled, m), m);
    return scaled;
  }
  HWY_INLINE V corrected_first(V m) const { return hn::Mul(m, inverse_correction1); }

  // Advances m and v by the raw gradient g; returns the direction.
  HWY_INLINE V direction(V g, V& m, V& v) const {
    const V scaled = advance_first(g, m);
    v = hn::MulAdd(beta2, v, hn::Mul(hn::Mul(one_minus_beta2, scaled), scaled));
    const V denominator = hn::MulAdd(hn::Sqrt(v), inverse_sqrt_correction2, eps);
    return hn::Div(corrected_first(m), denominator);
  }

  HWY_INLINE V moved(V w, V d) const { return hn::MulAdd(minus_lr, d, hn::Mul(keep, w)); }

  V scale, one_minus_beta1, beta2, one_minus_beta2, inverse_correction1, inverse_sqrt_correction2;
  V eps, keep, minus_lr;
};

// ---- Weights -----------------------------------------------------------------------------------
//
// begin(i, n) announces elements [i, i + n). Then each vector is loaded, updated and stored, in
// that order, two vectors at a time: see sweep().

inline constexpr std::size_t kAdamTile = 2048;

struct WeightLanes {  // The common part of most forms of a weight.
  void begin(std::size_t, std::size_t) {}
  template <class D>
  HWY_INLINE hn::Vec<D> moved(const AdamFormula<D>& formula, hn::Vec<D> w,
                              hn::Vec<D> direction) const {
    return formula.moved(w, direction);
  }
};

template <typename Out>
struct DirectionLanes {
  Out* out;

  void begin(std::size_t, std::size_t) {}
  template <class D, class Lanes>
  HWY_INLINE hn::Vec<D> load(D d, Lanes, std::size_t) const {
    return hn::Zero(d);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> moved(const AdamFormula<D>&, hn::Vec<D>, hn::Vec<D> direction) const {
    return direction;
  }
  template <class D, class Lanes>
  HWY_INLINE void store(D d, Lanes lanes, hn::Vec<D> x, std::size_t i) const {
    lanes.store(d, x, out + i);
  }
};

struct MasterLanes : WeightLanes {
  MasterLanes(const float* from, float* to) : in(from), out(to) {}

  template <class D, class Lanes>
  HWY_INLINE hn::Vec<D> load(D d, Lanes lanes, std::size_t i) const {
    return lanes.load(d, in + i);
  }
  template <class D, class Lanes>
  HWY_INLINE void store(D d, Lanes lanes, hn::Vec<D> w, std::size_t i) const {
    lanes.store(d, w, out + i);
  }

  const float* in;
  float* out;
};

template <typename T>
struct CopyLanes : MasterLanes {
  CopyLanes(const float* from, float* to, T* nearest) : MasterLanes(from, to), copy(nearest) {}

  template <class D, class Lanes>
  HWY_INLINE void store(D d, Lanes lanes, hn::Vec<D> w, std::size_t i) const {
    lanes.store(d, w, out + i);
    lanes.store(d, w, copy + i);
  }

  T* copy;
};

class StochasticLanes : public WeightLanes {
 public:
  explicit StochasticLanes(const StochasticWeight& w)
      : in_(w.in.data()), out_(w.out.data()), first_(w.first), noise_(w.key) {}

  void begin(std::size_t i, std::size_t n) {
    noise_.fill(first_ + i, bits_, n);
    tile_ = i;
  }
  template <class D, class Lanes>
  HWY_INLINE hn::Vec<D> load(D d, Lanes lanes, std::size_t i) const {
    return lanes.load(d, in_ + i);
  }
  template <class D, class Lanes>
  HWY_INLINE void store(D d, Lanes lanes, hn::Vec<D> w, std::size_t i) const {
    const auto noise = lanes.load_u16(d, bits_ + (i - tile_));
    lanes.store_u16(d, bf16_stochastic_bits(d, w, noise), out_ + i);
  }

 private:
  const bf16* in_;
  bf16* out_;
  std::uint64_t first_;
  NoiseStream noise_;
  std::size_t tile_ = 0;
  std::uint16_t bits_[kAdamTile];
};

struct HiLoLanes : WeightLanes {
  explicit HiLoLanes(const HiLoWeight& w)
      : hi_in(w.hi_in.data()),
        low_in(w.low_in.data()),
        hi_out(w.hi_out.data()),
        low_out(w.low_out.data()) {}

  template <class D, class Lanes>
  HWY_INLINE hn::Vec<D> load(D d, Lanes lanes, std::size_t i) const {
    const auto low = lanes.load_u16(d, low_in + i);
    const auto top = hn::Sub(lanes.load_u16(d, hi_in + i), hn::ShiftRight<15>(low));
    return hn::BitCast(d, hn::Or(hn::ShiftLeft<16>(top), low));
  }
  template <class D, class Lanes>
  HWY_INLINE void store(D d, Lanes lanes, hn::Vec<D> w, std::size_t i) const {
    const U32<D> du;
    const auto u = hn::BitCast(du, w);
    const auto hi = hn::Add(hn::ShiftRight<16>(u), hn::And(hn::ShiftRight<15>(u), hn::Set(du, 1)));
    const auto mask = hn::Set(du, 0xFFFF);
    lanes.store_u16(d, hn::And(hi, mask), hi_out + i);
    lanes.store_u16(d, hn::And(u, mask), low_out + i);
  }

  const bf16* hi_in;
  const std::uint16_t* low_in;
  bf16* hi_out;
  std::uint16_t* low_out;
};

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#endif  // SLUICEWAY_KERNELS_ADAM_INL_H_
