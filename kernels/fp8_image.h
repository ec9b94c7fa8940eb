// An f32 weight in 8 bits an element: E4M3 numbers, and a power of two for each 128 of them.
//
//   image  = tile* ;                   each of 2,048 elements; the last holds the remainder
//   tile   = scale{16} e4m3{1,2048} ;  scale b is for elements 128 b to 128 b + 127 of the tile
//   scale  = byte ;                    E8M0 [OCP MX]: 2^(byte - 127); here 11 to 246
//   e4m3   = byte ;                    sign, 4 bits of exponent with a bias of 7, 3 of mantissa
//                                      [OCP FP8]; at most 448, no infinity, 0x7F and 0xFF are NaN
//   value  = e4m3 * scale
//
// The scale is the smallest at which the largest finite element of its block rounds to 448 or less,
// so no number is clipped, where [OCP MX] clips up to 12.5 % off the largest. Elements are rounded
// to nearest, ties to even. Blocks are large because E4M3 has its own exponent: an element keeps
// its 3 bits down to 2^-13 of the largest in its block, if that is above 2^-108. 16 scales keep a
// tile aligned to 16 bytes, and the elements of a tile are also one tile of noise (noise.h) and of
// a CUDA block. Any range that starts at a tile has its own image, which is a part of the whole.
//
//   name    shape                   dtype   access
//   values  n                       f32     read
//   image   fp8_image_bytes(n)      bytes   written; any alignment
//
// Numerics: a value is exact in f32 and in bf16, and 0 or at least 2^-125. Elements up to 2^-126 in
//           size become zeros with their sign, so a thread that flushes denormals gets the same
//           bits, here and where images are read. Elements beyond 448 * 2^119 become that. A NaN or
//           an infinity becomes a NaN in the image, and does not affect the scale of its block; a
//           block without elements has the scale 11. Equal bits on every instruction set.
// Aliasing: values and image do not overlap.
// Errors:   InvalidArgument, naming both sizes, before anything is written.
// Cost:     reads 4 n bytes twice, the second time from the cache, and writes n (1 + 1 / 128).
//           perturb.h reads images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sluiceway {

inline constexpr std::size_t kFp8Block = 128;  // Elements that share a scale.
inline constexpr std::size_t kFp8Tile = 2048;  // Elements of a whole tile.
inline constexpr std::size_t kFp8Scales = kFp8Tile / kFp8Block;
inline constexpr std::size_t kFp8TileBytes = kFp8Scales + kFp8Tile;

constexpr std::uint64_t fp8_image_bytes(std::uint64_t elems) noexcept {
  return elems + kFp8Scales * ((elems + kFp8Tile - 1) / kFp8Tile);
}

namespace cpu {

// Runs on the calling thread. To parallelise, split into ranges that start at whole tiles.
void make_fp8_image(std::span<const float> values, std::span<std::byte> image);

}  // namespace cpu
}  // namespace sluiceway
