// The noise of philox.h on the device, and the stochastic rounding that draws it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/base/dtype.h"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/philox.h"

namespace sluiceway::cuda {

struct NoiseSource {  // A NoiseKey in the form that blocks need; the host derives it once a launch.
  PhiloxKey key{};
  std::uint32_t tensor_low = 0, tensor_high = 0;

  static NoiseSource of(const NoiseKey& key) {
    return {philox_key(key), static_cast<std::uint32_t>(key.tensor),
            static_cast<std::uint32_t>(key.tensor >> 32)};
  }
};

// Stream words 64 (block / 16) + block % 16 + 16 w, for w of 0 to 3.
__device__ inline PhiloxCounter noise_block(const NoiseSource& source, std::uint64_t block) {
  return philox4x32_10({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                        source.tensor_low, source.tensor_high},
                       source.key);
}

// noise_16() of one element. Comparisons choose the word: an index would put the words into memory.
__device__ inline std::uint32_t noise_of(const NoiseSource& source, std::uint64_t element) {
  const std::uint64_t q = element / 2;
  const PhiloxCounter words = noise_block(source, q / 64 * 16 + q % 16);
  const auto w = static_cast<unsigned>(q % 64 / 16);
  const std::uint32_t lower = w == 0 ? words[0] : words[1], upper = w == 2 ? words[2] : words[3];
  return (w < 2 ? lower : upper) >> (16 * static_cast<unsigned>(element % 2)) & 0xFFFFU;
}

// Returns the noise of elements [first, first + 8) as an octet of u16. Whole warps call it, from
// one-dimensional blocks of at most kMaxThreads threads.
//
// If the 16 lanes of half a warp hold 128 elements that start at a multiple of 128, these need 16
// whole Philox blocks: each lane computes one, and the lanes exchange words through shared memory
// (four stores without bank conflicts, one load of 16 bytes). This takes 9 instructions an element
// instead of 60.
__device__ inline Octet<std::uint16_t> noise_octet(const NoiseSource& source, std::uint64_t first) {
  __shared__ uint4 exchange[kMaxThreads];
  const unsigned lane = threadIdx.x % 32, slot = lane % 16;
  if (__all_sync(kWholeWarp, first % 128 == 8 * slot)) {
    const PhiloxCounter words = noise_block(source, first / 128 * 16 + slot);
    uint4* const half = exchange + (threadIdx.x - slot);
    auto* const stream = reinterpret_cast<std::uint32_t*>(half);
#pragma unroll
    for (unsigned w = 0; w < 4; ++w) stream[16 * w + slot] = words[w];
    __syncwarp();
    const uint4 mine = half[slot];
    __syncwarp();  // Before the next call writes here.
    return {{mine.x, mine.y, mine.z, mine.w}};
  }
  Octet<std::uint16_t> bits{};
#pragma unroll 1
  // Shifted in from above, so the first ends up lowest.
  for (std::uint64_t k = 0; k < kOctet; ++k) {
    const std::uint32_t next = noise_of(source, first + k);
    bits.word[0] = bits.word[0] >> 16 | bits.word[1] << 16;
    bits.word[1] = bits.word[1] >> 16 | bits.word[2] << 16;
    bits.word[2] = bits.word[2] >> 16 | bits.word[3] << 16;
    bits.word[3] = bits.word[3] >> 16 | next << 16;
  }
  return bits;
}

// Rounds up in magnitude with probability (discarded part) / ulp. A NaN stays a NaN.
__device__ inline std::uint32_t stochastic_bits(float x, std::uint32_t noise) {
  const std::uint32_t bits = __float_as_uint(x);
  const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return nan ? bits >> 16 | 0x40U : (bits + noise) >> 16;
}

__device__ inline Octet<bf16> stochastic_octet(const float (&x)[kOctet],
                                               const Octet<std::uint16_t>& noise) {
  Octet<bf16> octet;
#pragma unroll
  for (int k = 0; k < kOctet; ++k) set_bits(octet, k, stochastic_bits(x[k], bits_of(noise, k)));
  return octet;
}

}  // namespace sluiceway::cuda
