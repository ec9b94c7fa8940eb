#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fp8_image_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cstring>

#include "kernels/base/check.h"
#include "kernels/fp8_image-inl.h"
#include "kernels/fp8_image.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

void make_fp8_image(const float* x, std::size_t n, std::uint8_t* image) {
  for (; n > 0; image += kFp8TileBytes) {
    const std::size_t tile = HWY_MIN(n, kFp8Tile);
    std::uint8_t* const codes = image + kFp8Scales;
    for (std::size_t b = 0, at = 0; b < kFp8Scales; ++b, at += kFp8Block) {
      const std::size_t count = at < tile ? HWY_MIN(tile - at, kFp8Block) : 0;
      if (count == kFp8Block) {
        image[b] = store_fp8_block(x + at, codes + at);
        continue;
      }
      float padded[kFp8Block] = {};
      std::uint8_t stored[kFp8Block];
      if (count > 0) std::memcpy(padded, x + at, count * sizeof(float));
      image[b] = store_fp8_block(padded, stored);
      if (count > 0) std::memcpy(codes + at, stored, count);
    }
    x += tile;
    n -= tile;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(make_fp8_image);

namespace cpu {

void make_fp8_image(std::span<const float> values, std::span<std::byte> image) {
  SLUICEWAY_CHECK(image.size() == fp8_image_bytes(values.size()), "make_fp8_image: image has ",
                  image.size(), " bytes, expected ", fp8_image_bytes(values.size()), " for ",
                  values.size(), " values");
  HWY_DYNAMIC_DISPATCH(make_fp8_image)
  (values.data(), values.size(), reinterpret_cast<std::uint8_t*>(image.data()));
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
