#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/perturb_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/base/elements.h"
#include "kernels/convert-inl.h"
#include "kernels/noise-inl.h"
#include "kernels/perturb.h"
#include "kernels/perturb_checks.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

using NoiseVector = hn::Vec<NoiseTag>;

// ---- One tile, in the first-level cache --------------------------------------------------------

template <typename T>
void load_tile(const T* w, float* a, std::size_t count) {
  const NoiseTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) hn::StoreU(load_f32(d, w + j), d, a + j);
  if (j < count) {
    alignas(64) float tail[hn::MaxLanes(NoiseTag())];
    hn::Store(FirstLanes{count - j}.load(d, w + j), d, tail);
    std::memcpy(a + j, tail, (count - j) * sizeof(float));
  }
}

class PendingStreams {
 public:
  explicit PendingStreams(std::span<const PendingUpdate> pending) {
    updates_.reserve(pending.size());
    for (const PendingUpdate& update : pending) {
      updates_.push_back({NoiseStream(update.key), update.scale});
    }
  }
  bool empty() const { return updates_.empty(); }

  // a[j] becomes a_K of element tile + j, for j of [begin, end).
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

// The source's options forbid contraction (CMakeLists.txt): theta is rounded before it is a
// summand.
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

template <typename Out>
void write_theta(const float* a, float gamma, const std::uint16_t* bits, Out* out,
                 std::size_t count) {
  const NoiseTag d;
  const std::size_t lanes = hn::Lanes(d);
  const NoiseVector factor = hn::Set(d, gamma);
  const auto write = [&](const float* from, const std::uint16_t* noise, Out* to) HWY_ATTR {
    const NoiseVector theta = hn::Mul(factor, hn::LoadU(d, from));
    if constexpr (std::is_same_v<Out, bf16>) {
      if (noise != nullptr) return store_stochastic(d, theta, noise, to);
    }
    store_nearest(d, theta, to);
  };
  std::size_t j = 0;
  for (; j + lanes <= count; j += lanes) write(a + j, bits == nullptr ? bits : bits + j, out + j);
  if (j == count) return;
  alignas(64) float tail[hn::MaxLanes(NoiseTag())] = {};
  alignas(64) std::uint16_t tail_bits[hn::MaxLanes(NoiseTag())] = {};
  alignas(64) Out written[hn::MaxLanes(NoiseTag())];
  std::memcpy(tail, a + j, (count - j) * sizeof(float));
  if (bits != nullptr) std::memcpy(tail_bits, bits + j, (count - j) * sizeof(std::uint16_t));
  write(tail, bits == nullptr ? bits : tail_bits, written);
  std::memcpy(out + j, written, (count - j) * sizeof(Out));
}

// ---- Whole arrays ------------------------------------------------------------------------------

void load_any(const std::byte* w, DType dtype, std::size_t at, float* a, std::size_t count) {
  switch (dtype) {
    case DType::kF32:
      return load_tile(reinterpret_cast<const float*>(w) + at, a, count);
    case DType::kF16:
      return load_tile(reinterpret_cast<const f16*>(w) + at, a, count);
    case DType::kBF16:
      return load_tile(reinterpret_cast<const bf16*>(w) + at, a, count);
  }
}

template <NoiseFamily kFamily, typename Out>
void perturb_to(std::span<const std::byte> w, DType w_dtype, Out* plus, Out* minus,
                const Theta& theta, const NoiseKey& key, float eps) {
  constexpr std::size_t kUnit = noise_unit(kFamily);
  const NoiseStream noise(key);
  const PendingStreams pending(theta.pending);
  std::size_t at = 0;
  const auto take = [&](std::uint64_t tile, std::size_t low, std::size_t high) HWY_ATTR {
    const std::size_t count = high - low;
    const std::size_t begin = low / kUnit * kUnit, end = hwy::RoundUpTo(high, kUnit);
    alignas(64) float loaded[kNoiseTile];
    const float* a = loaded;
    if (count == kNoiseTile && w_dtype == DType::kF32 && pending.empty()) {
      a = reinterpret_cast<const float*>(w.data()) + at;  // As it lies there.
    } else {
      if (count != end - begin) std::memset(loaded + begin, 0, (end - begin) * sizeof(float));
      load_any(w.data(), w_dtype, at, loaded + low, count);
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
  for_each_tile(theta.first, w.size() / size_bytes(w_dtype), take);
}

template <NoiseFamily kFamily>
void materialise_as(std::span<const std::byte> w, DType w_dtype, std::byte* out, DType out_dtype,
                    const Theta& theta, const NoiseKey* rounding_key) {
  constexpr std::size_t kUnit = noise_unit(kFamily);
  const PendingStreams pending(theta.pending);
  const NoiseStream rounding(rounding_key == nullptr ? NoiseKey{} : *rounding_key);
  std::size_t at = 0;
  const auto take = [&](std::uint64_t tile, std::size_t low, std::size_t high) HWY_ATTR {
    const std::size_t count = high - low;
    const std::size_t begin = low / kUnit * kUnit, end = hwy::RoundUpTo(high, kUnit);
    alignas(64) float a[kNoiseTile];
    alignas(64) std::uint16_t bits[kNoiseTile];
    if (count != end - begin) std::memset(a + begin, 0, (end - begin) * sizeof(float));
    load_any(w.data(), w_dtype, at, a + low, count);
    pending.apply<kFamily>(tile, a, begin, end);
    if (rounding_key != nullptr) rounding.fill(tile + low, bits, count);
    const std::uint16_t* const noise = rounding_key == nullptr ? nullptr : bits;
    if (out_dtype == DType::kF32) {
      write_theta(a + low, theta.gamma, noise, reinterpret_cast<float*>(out) + at, count);
    } else if (out_dtype == DType::kF16) {
      write_theta(a + low, theta.gamma, noise, reinterpret_cast<f16*>(out) + at, count);
    } else {
      write_theta(a + low, theta.gamma, noise, reinterpret_cast<bf16*>(out) + at, count);
    }
    at += count;
  };
  for_each_tile(theta.first, w.size() / size_bytes(w_dtype), take);
}

template <NoiseFamily kFamily>
void perturb_as(std::span<const std::byte> w, DType w_dtype, std::byte* plus, std::byte* minus,
                DType out_dtype, const Theta& theta, const NoiseKey& key, float eps) {
  const auto to = [&]<typename Out>(Out) {
    perturb_to<kFamily>(w, w_dtype, reinterpret_cast<Out*>(plus), reinterpret_cast<Out*>(minus),
                        theta, key, eps);
  };
  if (out_dtype == DType::kF32) return to(float{});
  if (out_dtype == DType::kF16) return to(f16{});
  to(bf16{});
}

void perturb_any(std::span<const std::byte> w, DType w_dtype, std::byte* plus, std::byte* minus,
                 DType out_dtype, const Theta& theta, const NoiseKey& key, float eps) {
  switch (theta.family) {
    case NoiseFamily::kRademacher:
      return perturb_as<NoiseFamily::kRademacher>(w, w_dtype, plus, minus, out_dtype, theta, key,
                                                  eps);
    case NoiseFamily::kByteQuantile:
      return perturb_as<NoiseFamily::kByteQuantile>(w, w_dtype, plus, minus, out_dtype, theta, key,
                                                    eps);
    case NoiseFamily::kGaussian:
      return perturb_as<NoiseFamily::kGaussian>(w, w_dtype, plus, minus, out_dtype, theta, key,
                                                eps);
  }
}

void materialise_any(std::span<const std::byte> w, DType w_dtype, std::byte* out, DType out_dtype,
                     const Theta& theta, const NoiseKey* rounding_key) {
  switch (theta.family) {
    case NoiseFamily::kRademacher:
      return materialise_as<NoiseFamily::kRademacher>(w, w_dtype, out, out_dtype, theta,
                                                      rounding_key);
    case NoiseFamily::kByteQuantile:
      return materialise_as<NoiseFamily::kByteQuantile>(w, w_dtype, out, out_dtype, theta,
                                                        rounding_key);
    case NoiseFamily::kGaussian:
      return materialise_as<NoiseFamily::kGaussian>(w, w_dtype, out, out_dtype, theta,
                                                    rounding_key);
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

void perturb(std::span<const std::byte> w, DType w_dtype, std::span<std::byte> plus,
             std::span<std::byte> minus, DType out_dtype, const Theta& theta, const NoiseKey& key,
             float eps) {
  const std::size_t elems = check_perturbed("perturb", w, w_dtype, theta);
  check_written("perturb", "plus", plus, out_dtype, elems);
  check_written("perturb", "minus", minus, out_dtype, elems);
  HWY_DYNAMIC_DISPATCH(perturb_any)
  (w, w_dtype, plus.data(), minus.data(), out_dtype, theta, key, eps);
}

void materialise(std::span<const std::byte> w, DType w_dtype, std::span<std::byte> out,
                 DType out_dtype, const Theta& theta, Rounding rounding,
                 const NoiseKey& rounding_key) {
  const std::size_t elems = check_perturbed("materialise", w, w_dtype, theta);
  check_written("materialise", "out", out, out_dtype, elems);
  check_rounding_of("materialise", out_dtype, rounding);
  HWY_DYNAMIC_DISPATCH(materialise_any)
  (w, w_dtype, out.data(), out_dtype, theta,
   rounding == Rounding::kStochastic ? &rounding_key : nullptr);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
