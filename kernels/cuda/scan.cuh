// The scan of overflow_scan.h on the device, for kernels that scan what they copy or pack.
//
// A pass says where eight elements come from and where they go; scan_pass() is the kernel around
// it.
//
//   __device__ void take(row, col, count, float (&x)[8]) const   x: the elements to scan
//
// Numerics: as overflow_scan.h says: squares are summed eight at a time in f32, rescaled by a power
//           of two where they would leave its range, and then in double; the index decides the
//           order, so alignment does not matter.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/cuda/tile_walk.cuh"
#include "kernels/overflow_scan.h"

namespace sluiceway::cuda {

inline constexpr std::uint32_t kInfinityBits = 0x7F800000U;

class RunningScan {
 public:
  __device__ void add(const float (&x)[kOctet]) {
    float squares = 0.0F;
    std::uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      const std::uint32_t magnitude = __float_as_uint(x[k]) & 0x7FFFFFFFU;
      largest = magnitude > largest ? magnitude : largest;
      squares = fmaf(x[k], x[k], squares);
    }
    abs_max_bits_ = largest > abs_max_bits_ ? largest : abs_max_bits_;
    if (largest >= kLargeBits) {  // Also infinities and NaN.
      sum_squares_ += scaled_squares(x, 0x1p-100F) * 0x1p200;
    } else if (largest != 0 && largest < kSmallBits) {
      sum_squares_ += scaled_squares(x, 0x1p100F) * 0x1p-200;
    } else {
      sum_squares_ += static_cast<double>(squares);
    }
  }

  __device__ void add(double sum_squares, std::uint32_t abs_max_bits) {
    sum_squares_ += sum_squares;
    abs_max_bits_ = abs_max_bits > abs_max_bits_ ? abs_max_bits : abs_max_bits_;
  }

  __device__ double sum_squares() const { return sum_squares_; }
  __device__ std::uint32_t abs_max_bits() const { return abs_max_bits_; }

 private:
  static constexpr std::uint32_t kLargeBits = 0x5B000000U, kSmallBits = 0x2B800000U;  // 2^55, 2^-40

  __device__ static double scaled_squares(const float (&x)[kOctet], float scale) {
    float squares = 0.0F;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      const float scaled = x[k] * scale;
      squares = fmaf(scaled, scaled, squares);
    }
    return static_cast<double>(squares);
  }

  double sum_squares_ = 0.0;
  std::uint32_t abs_max_bits_ = 0;
};

struct ScanPart {  // The result of one block.
  double sum_squares;
  std::uint32_t abs_max_bits, none;
};

__device__ inline ScanPart block_part(const RunningScan& scan) {
  return {block_sum(scan.sum_squares()), block_max(scan.abs_max_bits()), 0};
}

// Joins the scans of all threads of a grid into one result. Every thread calls it once.
__device__ inline void finish_scan(const RunningScan& scan, unsigned* ticket, ScanPart* parts,
                                   ScanResult* result) {
  ScanPart total = block_part(scan);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
    if (!is_last_block(ticket)) return;
    RunningScan all;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
      all.add(parts[i].sum_squares, parts[i].abs_max_bits);
    }
    total = block_part(all);
  }
  if (threadIdx.x != 0) return;
  result->finite = total.abs_max_bits < kInfinityBits;
  result->sum_squares = total.sum_squares;
  result->abs_max = __uint_as_float(total.abs_max_bits);
}

inline constexpr std::int64_t kScanTile = kMaxThreads * kOctet;  // Elements of a block at a time.
inline constexpr GridLimits kScanLimits{1, 1024};  // The same on every device: equal bits.

// A block takes tiles of a row, an octet for each thread in turn, so a warp reads 512 contiguous
// bytes of a 16-bit type, and eight blocks per multiprocessor keep 32 KiB in flight. The roof is
// memory: the bytes of the pass; about 4 instructions an element.
template <class Pass>
__global__ void scan_pass(Pass pass, TileGrid grid, std::int64_t cols, unsigned* ticket,
                          ScanPart* parts, ScanResult* result) {
  RunningScan scan;
  for (TileWalk at(grid); at.more(); at.advance()) {
    const std::int64_t col = at.tile() * kScanTile + kOctet * threadIdx.x;
    float x[kOctet];
    pass.take(at.row(), col, octet_count(col, cols), x);
    scan.add(x);
  }
  finish_scan(scan, ticket, parts, result);
}

template <class Pass>
void run_scan(const char* name, const Pass& pass, std::int64_t rows, std::int64_t cols,
              ScanResult* result, StreamRef stream) {
  const StreamScratch scratch(stream);
  const TileGrid grid = TileGrid::of(rows, (cols + kScanTile - 1) / kScanTile, kScanLimits);
  static_assert(kScanLimits.most <= static_cast<std::int64_t>(StreamScratch::capacity<ScanPart>()));
  launch(name, Kernel<scan_pass<Pass>>(), {grid.blocks, kMaxThreads}, stream, pass, grid, cols,
         scratch.ticket(), scratch.parts<ScanPart>(), result);
}

}  // namespace sluiceway::cuda
