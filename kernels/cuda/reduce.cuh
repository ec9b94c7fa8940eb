// Sums and maxima over a block and over a grid, in an order that depends on the shapes alone.
//
// For the result of a grid, each block leaves its part in the stream's scratch (stream_scratch.cuh)
// and draws a ticket; the block with the last ticket reads all parts in ascending order. The bits
// do not depend on which block that is, no block waits for another, and there is one launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace sluiceway::cuda {

inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;
inline constexpr unsigned kMaxThreads = 256;  // Per block, at most; blocks have one dimension.

// How many blocks share the work: as many as there are pieces, but at most `most` if each leaves a
// part in the scratch, and at least one if the grid has a result.
struct GridLimits {
  std::int64_t least = 0, most = std::int64_t{1} << 30;

  unsigned blocks(std::int64_t pieces) const {
    return static_cast<unsigned>(std::clamp(pieces, least, most));
  }
};

// Lane 0 gets the result.
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

// Thread 0 gets the result: adds lanes by halves, then warps in ascending order.
__device__ inline double block_sum(double x) {
  __shared__ double sums[kMaxThreads / 32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) x += sums[warp];
  }
  __syncthreads();  // Before the next call writes here.
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

// Tells whether this block is the last to arrive; thread 0 must have written the block's part
// before. Resets the ticket to 0 for the next kernel of the stream.
__device__ inline bool is_last_block(unsigned* ticket) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    __threadfence();  // Publishes the part before the ticket is drawn.
    last = atomicAdd(ticket, 1U) == gridDim.x - 1;
    __threadfence();  // Makes the other parts visible once the last ticket is drawn.
    if (last) atomicExch(ticket, 0U);
  }
  __syncthreads();
  return last;
}

// Sums over the grid what each thread has, in the same order for each of the numbers. Every thread
// calls it once. Returns true in one thread of the grid, which has the totals; `parts` has room for
// kCount numbers a block.
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
