#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/perturb_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cstring>
#include <vector>

#include "kernels/fp8_image-inl.h"
#include "kernels/noise-inl.h"
#include "kernels/perturb.h"
#include "kernels/perturb_checks.h"
#include "kernels/theta_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// ---- One tile, in the first-level cache --------------------------------------------------------

class PendingStreams {
 public:
  explicit PendingStreams(std::span<const PendingUpdate> pending) {
    updates_.reserve(pending.size());
    for (const PendingUpdate& update : pending) {
      updates_.push_back({NoiseStream(update.key), update.scale});
    }
  }
  bool empty() const { return updates_.empty(); }

  // Turns a[j] into a_K of element tile + j, for j in [begin, end).
  template <NoiseFamily kFamily>
  void apply(std::uint64_t tile, float* HWY_RESTRICT a, std::size_t begin, std::size_t end) const {
    const NoiseTag d;
    for (const Update& update : updates_) {
      const NoiseVector scale = hn::Set(d, update.scale);
      for_each_z<kFamily>(update.noise, tile, begin, end, [=](std::size_t j, auto z) HWY_ATTR {
        hn::StoreU(z.axpy(d, scale, hn::LoadU(d, a + j)), d, a + j);
      });
    }
  }

 private:
  struct Update {
    NoiseStream noise;
    float scale;
  };
  std::vector<Update> updates_;
};

// The build forbids contraction for this source (CMakeLists.txt): theta is rounded before it is
// added to.
template <NoiseFamily kFamily, typename Out>
void write_both(const NoiseStream& noise, std::uint64_t tile, const float* HWY_RESTRICT a,
                float gamma, float eps, Out* HWY_RESTRICT plus, Out* HWY_RESTRICT minus,
                std::size_t begin, std::size_t end) {
  const NoiseTag d;
  const NoiseVector factor = hn::Set(d, gamma), up = hn::Set(d, eps), down = hn::Set(d, -eps);
  for_each_z<kFamily>(noise, tile, begin, end, [=](std::size_t j, auto z) HWY_ATTR {
    const NoiseVector theta = hn::Mul(factor, hn::LoadU(d, a + j));
    store_nearest(d, z.axpy(d, up, theta), plus + j);
    store_nearest(d, z.axpy(d, down, theta), minus + j);
  });
}

// Loads elements from `at` on from `w`.
void load_weight(const std::byte* w, WeightForm form, std::size_t at, float* a, std::size_t count) {
  if (form.is_fp8_image()) return load_fp8_image(w, at, a, count);
  load_any(w, form.dtype(), at, a, count);
}

// ---- Whole arrays ------------------------------------------------------------------------------

template <NoiseFamily kFamily, typename Out>
void perturb_to(std::span<const std::byte> w, WeightForm w_form, Out* plus, Out* minus,
                const Theta& theta, const NoiseKey& key, float eps) {
  constexpr std::size_t kUnit = noise_unit(kFamily);
  const NoiseStream noise(key);
  const PendingStreams pending(theta.pending);
  const std::size_t elems = w_form.elems(w.size()).value();
  std::size_t at = 0;
  const auto take = [&](std::uint64_t tile, std::size_t low, std::size_t high) HWY_ATTR {
    const std::size_t count = high - low;
    const std::size_t begin = low / kUnit * kUnit, end = hwy::RoundUpTo(high, kUnit);
    alignas(64) float loaded[kNoiseTile];
    const float* a = loaded;
    if (count == kNoiseTile && w_form == WeightForm(DType::kF32) && pending.empty()) {
      a = reinterpret_cast<const float*>(w.data()) + at;  // f32 is used in place.
    } else {
      if (count != end - begin) std::memset(loaded + begin, 0, (end - begin) * sizeof(float));
      load_weight(w.data(), w_form, at, loaded + low, count);
      pending.apply<kFamily>(tile, loaded, begin, end);
    }
    if (count == kNoiseTile) {
      write_both<kFamily>(noise, tile, a, theta.gamma, eps, plus + at, minus + at, 0, kNoiseTile);
    } else {
      alignas(64) Out up[kNoiseTile];
      alignas(64) Out down[kNoiseTile];
      write_both<kFamily>(noise, tile, a, theta.gamma, eps, up, down, begin, end);
      std::memcpy(plus + at, up + low, count * sizeof(Out));
      std::memcpy(minus + at, down + low, count * sizeof(Out));
    }
    at += count;
  };
  for_each_tile(theta.first, elems, take);
}

template <NoiseFamily kFamily>
void materialise_as(std::span<const std::byte> w, WeightForm w_form, std::byte* out,
                    DType out_dtype, const Theta& theta, const NoiseKey* rounding_key) {
  constexpr std::size_t kUnit = noise_unit(kFamily);
  const PendingStreams pending(theta.pending);
  const NoiseStream rounding(rounding_key == nullptr ? NoiseKey{} : *rounding_key);
  const std::size_t elems = w_form.elems(w.size()).value();
  std::size_t at = 0;
  const auto take = [&](std::uint64_t tile, std::size_t low, std::size_t high) HWY_ATTR {
    const std::size_t count = high - low;
    const std::size_t begin = low / kUnit * kUnit, end = hwy::RoundUpTo(high, kUnit);
    alignas(64) float a[kNoiseTile];
    alignas(64) std::uint16_t bits[kNoiseTile];
    if (count != end - begin) std::memset(a + begin, 0, (end - begin) * sizeof(float));
    load_weight(w.data(), w_form, at, a + low, count);
    pending.apply<kFamily>(tile, a, begin, end);
    if (rounding_key != nullptr) rounding.fill(tile + low, bits, count);
    const std::uint16_t* const noise = rounding_key == nullptr ? nullptr : bits;
    write_any(a + low, theta.gamma, noise, out, out_dtype, at, count);
    at += count;
  };
  for_each_tile(theta.first, elems, take);
}

template <NoiseFamily kFamily>
void perturb_as(std::span<const std::byte> w, WeightForm w_form, std::byte* plus, std::byte* minus,
                DType out_dtype, const Theta& theta, const NoiseKey& key, float eps) {
  const auto to = [&]<typename Out>(Out) {
    perturb_to<kFamily>(w, w_form, reinterpret_cast<Out*>(plus), reinterpret_cast<Out*>(minus),
                        theta, key, eps);
  };
  if (out_dtype == DType::kF32) return to(float{});
  if (out_dtype == DType::kF16) return to(f16{});
  to(bf16{});
}

void perturb_any(std::span<const std::byte> w, WeightForm w_form, std::byte* plus, std::byte* minus,
                 DType out_dtype, const Theta& theta, const NoiseKey& key, float eps) {
  switch (theta.family) {
    case NoiseFamily::kRademacher:
      return perturb_as<NoiseFamily::kRademacher>(w, w_form, plus, minus, out_dtype, theta, key,
                                                  eps);
    case NoiseFamily::kByteQuantile:
      return perturb_as<NoiseFamily::kByteQuantile>(w, w_form, plus, minus, out_dtype, theta, key,
                                                    eps);
    case NoiseFamily::kGaussian:
      return perturb_as<NoiseFamily::kGaussian>(w, w_form, plus, minus, out_dtype, theta, key, eps);
  }
}

void materialise_any(std::span<const std::byte> w, WeightForm w_form, std::byte* out,
                     DType out_dtype, const Theta& theta, const NoiseKey* rounding_key) {
  switch (theta.family) {
    case NoiseFamily::kRademacher:
      return materialise_as<NoiseFamily::kRademacher>(w, w_form, out, out_dtype, theta,
                                                      rounding_key);
    case NoiseFamily::kByteQuantile:
      return materialise_as<NoiseFamily::kByteQuantile>(w, w_form, out, out_dtype, theta,
                                                        rounding_key);
    case NoiseFamily::kGaussian:
      return materialise_as<NoiseFamily::kGaussian>(w, w_form, out, out_dtype, theta, rounding_key);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(perturb_any);
HWY_EXPORT(materialise_any);

namespace cpu {

void perturb(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps) {
  const std::size_t elems = check_perturbed("perturb", w, w_form, theta);
  check_written("perturb", "plus", plus, out_dtype, elems);
  check_written("perturb", "minus", minus, out_dtype, elems);
  HWY_DYNAMIC_DISPATCH(perturb_any)
  (w, w_form, plus.data(), minus.data(), out_dtype, theta, key, eps);
}

void materialise(std::span<const std::byte> w, WeightForm w_form, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding,
                 const NoiseKey& rounding_key) {
  const std::size_t elems = check_perturbed("materialise", w, w_form, theta);
  check_written("materialise", "out", out, out_dtype, elems);
  check_rounding_of("materialise", out_dtype, rounding);
  HWY_DYNAMIC_DISPATCH(materialise_any)
  (w, w_form, out.data(), out_dtype, theta,
   rounding == Rounding::kStochastic ? &rounding_key : nullptr);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
