#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adam_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/adam-inl.h"
#include "kernels/adam.h"
#include "kernels/adam_checks.h"

#ifndef SLUICEWAY_KERNELS_ADAM_PASS_
#define SLUICEWAY_KERNELS_ADAM_PASS_
namespace sluiceway {

struct AdamPass {  // The arrays of every variant; their lengths are already checked.
  const void* g;
  DType g_dtype;
  AdamCoefficients coefficients;
  AdamMoments moments;
};

}  // namespace sluiceway
#endif  // SLUICEWAY_KERNELS_ADAM_PASS_

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// One vector of every array.
template <class D>
struct AdamVectors {
  hn::Vec<D> g, m, v, w;
};

template <class D, class Lanes, typename G, class Weight>
HWY_INLINE AdamVectors<D> loaded(D d, Lanes lanes, const G* g, const AdamMoments& s,
                                 const Weight& weight, std::size_t i) {
  return {lanes.load(d, g + i), lanes.load(d, s.m_in.data() + i), lanes.load(d, s.v_in.data() + i),
          weight.load(d, lanes, i)};
}

template <class D, class Weight>
HWY_INLINE void step(const AdamFormula<D>& formula, const Weight& weight, AdamVectors<D>& x) {
  const auto direction = formula.direction(x.g, x.m, x.v);
  x.w = weight.moved(formula, x.w, direction);
}

template <class D, class Lanes, class Weight>
HWY_INLINE void stored(D d, Lanes lanes, const AdamVectors<D>& x, const AdamMoments& s,
                       const Weight& weight, std::size_t i) {
  lanes.store(d, x.m, s.m_out.data() + i);
  lanes.store(d, x.v, s.v_out.data() + i);
  weight.store(d, lanes, x.w, i);
}

template <class D, class Lanes, typename G, class Weight>
HWY_INLINE void advance(D d, Lanes lanes, const AdamFormula<D>& formula, const G* g,
                        const AdamMoments& s, const Weight& weight, std::size_t i) {
  AdamVectors<D> x = loaded(d, lanes, g, s, weight, i);
  step(formula, weight, x);
  stored(d, lanes, x, s, weight, i);
}

// Reads two vectors (a cache line with AVX2) before it writes either: arrays whose distance is a
// power of two share slots of the first-level cache, and would otherwise evict one another.
template <class D, typename G, class Weight>
HWY_INLINE void advance_two(D d, const AdamFormula<D>& formula, const G* g, const AdamMoments& s,
                            const Weight& weight, std::size_t i) {
  const std::size_t j = i + hn::Lanes(d);
  AdamVectors<D> x = loaded(d, WholeVector(), g, s, weight, i);
  AdamVectors<D> y = loaded(d, WholeVector(), g, s, weight, j);
  step(formula, weight, x);
  step(formula, weight, y);
  stored(d, WholeVector(), x, s, weight, i);
  stored(d, WholeVector(), y, s, weight, j);
}

template <typename G, class Weight>
HWY_INLINE void sweep(const AdamPass& pass, const G* g, Weight& weight) {
  using D = hn::ScalableTag<float>;
  const D d;
  const AdamFormula<D> formula(d, pass.coefficients);
  const std::size_t n = pass.moments.m_in.size(), lanes = hn::Lanes(d);
  for (std::size_t tile = 0; tile < n; tile += kAdamTile) {
    const std::size_t end = HWY_MIN(n, tile + kAdamTile);
    weight.begin(tile, end - tile);
    std::size_t i = tile;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      advance_two(d, formula, g, pass.moments, weight, i);
    }
    for (; i + lanes <= end; i += lanes) {
      advance(d, WholeVector(), formula, g, pass.moments, weight, i);
    }
    if (i < end) advance(d, FirstLanes{end - i}, formula, g, pass.moments, weight, i);
  }
}

template <class Weight>
HWY_INLINE void sweep_any(const AdamPass& pass, Weight weight) {
  switch (pass.g_dtype) {
    case DType::kF32:
      return sweep(pass, static_cast<const float*>(pass.g), weight);
    case DType::kF16:
      return sweep(pass, static_cast<const f16*>(pass.g), weight);
    case DType::kBF16:
      return sweep(pass, static_cast<const bf16*>(pass.g), weight);
  }
}

void direction_f32(const AdamPass& pass, float* d) { sweep_any(pass, DirectionLanes<float>{d}); }
void direction_bf16(const AdamPass& pass, bf16* d) { sweep_any(pass, DirectionLanes<bf16>{d}); }
void step_master(const AdamPass& pass, const MasterWeight& w) {
  sweep_any(pass, MasterLanes(w.in.data(), w.out.data()));
}
void step_copy_f16(const AdamPass& pass, const MasterAndCopy<f16>& w) {
  sweep_any(pass, CopyLanes<f16>(w.in.data(), w.out.data(), w.copy.data()));
}
void step_copy_bf16(const AdamPass& pass, const MasterAndCopy<bf16>& w) {
  sweep_any(pass, CopyLanes<bf16>(w.in.data(), w.out.data(), w.copy.data()));
}
void step_stochastic(const AdamPass& pass, const StochasticWeight& w) {
  sweep_any(pass, StochasticLanes(w));
}
void step_hi_lo(const AdamPass& pass, const HiLoWeight& w) { sweep_any(pass, HiLoLanes(w)); }

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {

HWY_EXPORT(direction_f32);
HWY_EXPORT(direction_bf16);
HWY_EXPORT(step_master);
HWY_EXPORT(step_copy_f16);
HWY_EXPORT(step_copy_bf16);
HWY_EXPORT(step_stochastic);
HWY_EXPORT(step_hi_lo);

void dispatch(const AdamPass& pass, const MasterWeight& w) {
  HWY_DYNAMIC_DISPATCH(step_master)(pass, w);
}
void dispatch(const AdamPass& pass, const MasterAndCopy<f16>& w) {
  HWY_DYNAMIC_DISPATCH(step_copy_f16)(pass, w);
}
void dispatch(const AdamPass& pass, const MasterAndCopy<bf16>& w) {
  HWY_DYNAMIC_DISPATCH(step_copy_bf16)(pass, w);
}
void dispatch(const AdamPass& pass, const StochasticWeight& w) {
  HWY_DYNAMIC_DISPATCH(step_stochastic)(pass, w);
}
void dispatch(const AdamPass& pass, const HiLoWeight& w) {
  HWY_DYNAMIC_DISPATCH(step_hi_lo)(pass, w);
}
void dispatch(const AdamPass& pass, std::span<float> d) {
  HWY_DYNAMIC_DISPATCH(direction_f32)(pass, d.data());
}
void dispatch(const AdamPass& pass, std::span<bf16> d) {
  HWY_DYNAMIC_DISPATCH(direction_bf16)(pass, d.data());
}

template <typename G>
AdamPass pass_of(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                 const AdamHyper& hyper) {
  return {g.data(), dtype_of<G>, AdamCoefficients::of(grad_scale, hyper), moments};
}

}  // namespace

namespace cpu {

template <typename G, typename D>
void adam_direction(std::span<const G> g, float grad_scale, const AdamMoments& moments,
                    const AdamHyper& hyper, std::span<D> d) {
  check_adam_direction(g, moments, hyper, d);
  dispatch(pass_of(g, grad_scale, moments, hyper), d);
}

template <typename G, typename Weight>
void adam_step(std::span<const G> g, float grad_scale, const AdamMoments& moments,
               const AdamHyper& hyper, const Weight& w) {
  check_adam_step(g, moments, hyper, w);
  dispatch(pass_of(g, grad_scale, moments, hyper), w);
}

#define SLUICEWAY_INSTANTIATE(G)                                                                \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<float>);                                               \
  template void adam_direction(std::span<const G>, float, const AdamMoments&, const AdamHyper&, \
                               std::span<bf16>);                                                \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterWeight&);                                                 \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterAndCopy<f16>&);                                           \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const MasterAndCopy<bf16>&);                                          \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const StochasticWeight&);                                             \
  template void adam_step(std::span<const G>, float, const AdamMoments&, const AdamHyper&,      \
                          const HiLoWeight&)

SLUICEWAY_INSTANTIATE(float);
SLUICEWAY_INSTANTIATE(f16);
SLUICEWAY_INSTANTIATE(bf16);
#undef SLUICEWAY_INSTANTIATE

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
