// Sums and maxima over a block and over a grid, in an order that the shapes alone decide.
//
// A grid's result: each block leaves its part in the stream's scratch (stream_scratch.cuh) and
// draws a ticket; the block with the last one reads all parts in ascending order. Which block that
// is does not matter to the bits, nothing waits for anything, and there is one launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace sluiceway::cuda {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;
inline constexpr unsigned kMaxThreads = 256;  // Of every block here; blocks have one dimension.

// How many blocks share the work: as many as there are pieces of it, but a grid that leaves a part
// each has room for `most` of them, and one whose result is wanted has at least one.
struct GridLimits {
  std::int64_t least = 0, most = std::int64_t{1} << 30;

  unsigned blocks(std::int64_t pieces) const {
    return static_cast<unsigned>(std::clamp(pieces, least, most));
  }
};

// In lane 0.
template <typename T>
__device__ T warp_sum(T x) {
#pragma unroll
  for (unsigned delta = 16; delta > 0; delta /= 2) x += __shfl_down_sync(kWholeWarp, x, delta);
  return x;
}

__device__ inline std::uint32_t warp_max(std::uint32_t x) {
#pragma unroll
  for (unsigned delta = 16; delta > 0; delta /= 2) {
    const std::uint32_t other = __shfl_down_sync(kWholeWarp, x, delta);
    x = other > x ? other : x;
  }
  return x;
}

// In thread 0: lanes by halves, then warps in ascending order.
__device__ inline double block_sum(double x) {
  __shared__ double sums[kMaxThreads / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) x += sums[warp];
  }
  __syncthreads();  // The next call writes here.
  return x;
}

__device__ inline std::uint32_t block_max(std::uint32_t x) {
  __shared__ std::uint32_t largest[kMaxThreads / 32];
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) {
      x = largest[warp] > x ? largest[warp] : x;
    }
  }
  __syncthreads();
  return x;
}

// Whether this block is the last to come here; thread 0 has written the block's part before. The
// ticket is left as it was found, 0, for the next kernel of the stream.
__device__ inline bool is_last_block(unsigned* ticket) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __threadfence();  // The part is visible before the ticket is drawn.
    last = atomicAdd(ticket, 1U) == gridDim.x - 1;
    __threadfence();  // And the others' parts are, once the last is drawn.
    if (last) atomicExch(ticket, 0U);
  }
  __syncthreads();
  return last;
}

// Sums over the grid of what each thread has, in the same order for each of them. Called by every
// thread, once. True in one thread of the grid, which has the totals; `parts` has room for kCount
// numbers a block.
template <int kCount>
__device__ bool sum_of_grid(const double (&mine)[kCount], unsigned* ticket, double* parts,
                            double (&total)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const double part = block_sum(mine[k]);
    if (threadIdx.x == 0) parts[k * gridDim.x + blockIdx.x] = part;
  }
  if (!is_last_block(ticket)) return false;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) sum += parts[k * gridDim.x + i];
    total[k] = block_sum(sum);
  }
  return threadIdx.x == 0;
}

}  // namespace sluiceway::cuda
