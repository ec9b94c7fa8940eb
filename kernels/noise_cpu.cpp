#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/noise_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cstring>

#include "kernels/noise-inl.h"
#include "kernels/noise.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

template <NoiseFamily kFamily>
void draw(float* out, const NoiseKey& key, std::uint64_t first, std::size_t count) {
  const NoiseStream noise(key);
  for_each_tile(first, count, [&](std::uint64_t tile, std::size_t low, std::size_t high) HWY_ATTR {
    const auto draw_to = [&](float* z, std::size_t begin, std::size_t end) HWY_ATTR {
      for_each_z<kFamily>(noise, tile, begin, end, [=](std::size_t j, auto drawn) HWY_ATTR {
        hn::StoreU(drawn.value, NoiseTag(), z + j);
      });
    };
    if (high - low == kNoiseTile) {
      draw_to(out, 0, kNoiseTile);
    } else {
      constexpr std::size_t kUnit = noise_unit(kFamily);
      alignas(64) float z[kNoiseTile];
      draw_to(z, low / kUnit * kUnit, hwy::RoundUpTo(high, kUnit));
      std::memcpy(out, z + low, (high - low) * sizeof(float));
    }
    out += high - low;
  });
}

void draw_family(float* out, const NoiseKey& key, std::uint64_t first, std::size_t count,
                 NoiseFamily family) {
  switch (family) {
    case NoiseFamily::kRademacher:
      return draw<NoiseFamily::kRademacher>(out, key, first, count);
    case NoiseFamily::kByteQuantile:
      return draw<NoiseFamily::kByteQuantile>(out, key, first, count);
    case NoiseFamily::kGaussian:
      return draw<NoiseFamily::kGaussian>(out, key, first, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(draw_family);

namespace cpu {

void draw_noise(std::span<float> out, const NoiseKey& key, std::uint64_t first,
                NoiseFamily family) {
  HWY_DYNAMIC_DISPATCH(draw_family)(out.data(), key, first, out.size(), family);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
