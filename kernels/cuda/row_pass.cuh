// A kernel that visits the elements of a matrix once: a warp takes 256 columns of a row, a lane an
// octet, a block eight rows.
//
//   __device__ void take(row, col, count)    count elements from (row, col) on; may be 0
//   __device__ void begin()                  optional; called once a thread, before take()
//
// Whole warps call both. Loads and stores are of 16 bytes if rows start on 16 bytes; for a 16-bit
// type a warp covers 512 contiguous bytes. The roof is memory: the bytes that the operation names.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/tile_walk.cuh"

namespace sluiceway::cuda {

inline constexpr std::int64_t kPassRows = kMaxThreads / 32, kPassCols = 32 * kOctet;

// About four waves of blocks on the largest device, so that work that a thread does once serves
// several octets.
inline constexpr GridLimits kPassLimits{0, 4096};
inline constexpr GridLimits kSumLimits{1, 2048};  // For sums; the same on every device: equal bits.

struct RowTiles {
  TileGrid grid;
  std::int64_t rows, cols;

  static RowTiles of(std::int64_t rows, std::int64_t cols, const GridLimits& limits) {
    const std::int64_t tile_rows = (rows + kPassRows - 1) / kPassRows;
    return {TileGrid::of(tile_rows, (cols + kPassCols - 1) / kPassCols, limits), rows, cols};
  }
};

template <class Op>
__device__ void for_row_tiles(const RowTiles& tiles, Op& op) {
  for (TileWalk at(tiles.grid); at.more(); at.advance()) {
    const std::int64_t row = at.row() * kPassRows + threadIdx.x / 32;
    const std::int64_t col = at.tile() * kPassCols + threadIdx.x % 32 * kOctet;
    op.take(row, col, row < tiles.rows ? octet_count(col, tiles.cols) : 0);
  }
}

template <class Op>
__global__ void row_pass(Op op, RowTiles tiles) {
  if constexpr (requires { op.begin(); }) op.begin();
  for_row_tiles(tiles, op);
}

template <class Op>
void run_row_pass(const char* name, const Op& op, std::int64_t rows, std::int64_t cols,
                  StreamRef stream) {
  const RowTiles tiles = RowTiles::of(rows, cols, kPassLimits);
  launch(name, Kernel<row_pass<Op>>(), {tiles.grid.blocks, kMaxThreads}, stream, op, tiles);
}

}  // namespace sluiceway::cuda
