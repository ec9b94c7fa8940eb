// The tiles of a matrix that one block visits: the tile of its own number, then every gridDim.x-th,
// row of tiles after row. The host does the divisions, except one of 32 bits.
//
//   for (TileWalk at(grid); at.more(); at.advance()) ... at.row(), at.tile()
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/reduce.cuh"

namespace sluiceway::cuda {

struct TileGrid {
  std::int64_t rows, row_tiles;  // Rows of tiles, and tiles in one.
  std::int64_t step_rows, step_tiles;
  unsigned blocks;

  static TileGrid of(std::int64_t rows, std::int64_t row_tiles, const GridLimits& limits) {
    const unsigned blocks = limits.blocks(rows * row_tiles);
    if (rows * row_tiles == 0) return {0, 1, 0, 0, blocks};
    return {rows, row_tiles, blocks / row_tiles, blocks % row_tiles, blocks};
  }
};

class TileWalk {
 public:
  __device__ explicit TileWalk(const TileGrid& grid) : grid_(grid) {
    if (grid.row_tiles > blockIdx.x) {
      row_ = 0, tile_ = blockIdx.x;
    } else {
      const auto row_tiles = static_cast<unsigned>(grid.row_tiles);
      row_ = blockIdx.x / row_tiles, tile_ = blockIdx.x % row_tiles;
    }
  }

  __device__ bool more() const { return row_ < grid_.rows; }
  __device__ void advance() {
    row_ += grid_.step_rows;
    tile_ += grid_.step_tiles;
    if (tile_ >= grid_.row_tiles) {
      tile_ -= grid_.row_tiles;
      ++row_;
    }
  }
  __device__ std::int64_t row() const { return row_; }
  __device__ std::int64_t tile() const { return tile_; }

 private:
  const TileGrid& grid_;
  std::int64_t row_, tile_;
};

}  // namespace sluiceway::cuda
