// Eight elements of an fp8 image (fp8_image.h) in the registers of one thread.
//
// If they start at a multiple of eight, they share one scale, and their codes are one load of 8
// bytes, since the size of a whole tile is a multiple of 16 bytes; otherwise they are read one by
// one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/noise_tile.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/fp8_image.h"

namespace sluiceway::cuda {

__device__ inline float e4m3_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & 0x7FU, sign = (code & 0x80U) << 24;
  const float tiny = __fmul_rn(static_cast<float>(magnitude), 0x1p-9F);
  const std::uint32_t normal = (magnitude << 20) + (120U << 23);
  const std::uint32_t value = magnitude < 8 ? __float_as_uint(tiny) : normal;
  return __uint_as_float(sign | (magnitude == 0x7FU ? 0x7FC00000U : value));
}

__device__ inline float power_of_two(std::uint32_t biased) { return __uint_as_float(biased << 23); }

struct Fp8Elements {
  const std::uint8_t* image;

  __device__ const std::uint8_t* tile_of(std::int64_t i) const {
    return image +
           i / static_cast<std::int64_t>(kFp8Tile) * static_cast<std::int64_t>(kFp8TileBytes);
  }

  __device__ float at(std::int64_t i) const {
    const std::uint8_t* const tile = tile_of(i);
    const auto in_tile = static_cast<std::uint64_t>(i) % kFp8Tile;
    const float scale = power_of_two(tile[in_tile / kFp8Block]);
    return __fmul_rn(e4m3_value(tile[kFp8Scales + in_tile]), scale);
  }

  __device__ void load(const TilePart& part, float (&x)[kOctet]) const {
    const bool whole = part.low == 0 && part.high == kOctet && part.at % kOctet == 0 &&
                       reinterpret_cast<std::uintptr_t>(image) % kOctet == 0;
    if (!whole) {
#pragma unroll
      for (int k = 0; k < kOctet; ++k) {
        x[k] = k >= part.low && k < part.high ? at(part.at + k) : 0.0F;
      }
      return;
    }
    const std::uint8_t* const tile = tile_of(part.at);
    const auto in_tile = static_cast<std::uint64_t>(part.at) % kFp8Tile;
    const float scale = power_of_two(tile[in_tile / kFp8Block]);
    const uint2 codes = *reinterpret_cast<const uint2*>(tile + kFp8Scales + in_tile);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      const std::uint32_t word = k < 4 ? codes.x : codes.y;
      x[k] = __fmul_rn(e4m3_value(word >> (8 * (k % 4)) & 0xFFU), scale);
    }
  }
};

}  // namespace sluiceway::cuda
