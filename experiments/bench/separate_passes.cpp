#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "experiments/bench/separate_passes.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "experiments/bench/separate_passes.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// n is a multiple of every vector length.
template <typename In, typename Out>
HWY_INLINE void map_scaled(const In* x, float scale, Out* y, std::size_t n) {
  const hn::ScalableTag<float> d;
  const auto s = hn::Set(d, scale);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    store_nearest(d, hn::Mul(s, load_f32(d, x + i)), y + i);
  }
}

void unscale_all(const f16* g, float scale, float* out, std::size_t n) {
  map_scaled(g, scale, out, n);
}
void scale_all(float* x, float scale, std::size_t n) { map_scaled(x, scale, x, n); }
void cast_all(const float* w, f16* out, std::size_t n) { map_scaled(w, 1.0F, out, n); }

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {
HWY_EXPORT(unscale_all);
HWY_EXPORT(scale_all);
HWY_EXPORT(cast_all);
}  // namespace

namespace bench {

void unscale_pass(const f16* g, float scale, float* out, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(unscale_all)(g, scale, out, n);
}
void scale_pass(float* x, float scale, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(scale_all)(x, scale, n);
}
void cast_pass(const float* w, f16* out, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(cast_all)(w, out, n);
}

}  // namespace bench
}  // namespace sluiceway

#endif  // HWY_ONCE
