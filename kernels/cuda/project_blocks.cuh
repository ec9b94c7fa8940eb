// W <- G P for block projectors.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/base/view.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/shared.cuh"

namespace sluiceway::cuda {

inline constexpr unsigned kProjectThreads = 128;
inline constexpr int kProjectRows = 64;   // Rows of G for a block; a thread has eight of them.
inline constexpr int kUnitCols = 4;       // Kept columns of one group, for one thread.
inline constexpr int kProjectUnits = 16;  // Units of a block: 16 of them times 8 threads.
inline constexpr int kProjectCols = 128;  // Columns of G in shared memory.
inline constexpr int kProjectDepth = 32;  // Maximum of these in one group.

// How a grid divides the work: some rows, and either whole groups or some units of one group.
struct ProjectCut {
  int tile_units;  // Units of a group in one tile.
  int groups;      // Groups in one tile.
  int depth;       // Rows of P at once, a multiple of kOctet.
  std::int64_t unit_tiles, group_tiles, items;

  static ProjectCut of(const BlockRows& p, std::int64_t rows) {
    const std::int64_t units = std::max<std::int64_t>((p.kept + kUnitCols - 1) / kUnitCols, 1);
    const auto tile_units = static_cast<int>(std::min<std::int64_t>(units, kProjectUnits));
    const int groups = kProjectUnits / tile_units;
    const std::int64_t unit_tiles = (units + kProjectUnits - 1) / kProjectUnits;
    const std::int64_t group_tiles = (p.groups() + groups - 1) / groups;
    const std::int64_t row_tiles = (rows + kProjectRows - 1) / kProjectRows;
    return {
        tile_units, groups,      std::min(kProjectDepth, kProjectCols / groups / kOctet * kOctet),
        unit_tiles, group_tiles, row_tiles * group_tiles * unit_tiles};
  }

  constexpr int octets() const { return groups * depth / kOctet; }  // Octets of G's columns.
  constexpr int staged_rows() const { return octets() * (kOctet * kProjectRows + kOctet); }
  constexpr int staged_values() const { return depth * kProjectUnits * kUnitCols; }
};

// The work of one item of the grid: rows of G from `row` on, and groups of P from `group` on,
// starting at row `depth` of each.
struct ProjectTile {
  std::int64_t row, group, first_unit, depth;

  __device__ std::int64_t group_end(const BlockRows& p, std::int64_t of) const {
    return min((of + 1) * p.block, p.rows);
  }
};

// Returns where column j of G lies. The rows of a column lie side by side, so two loads of 16 bytes
// fetch a thread's eight. A gap after each octet lets the 8 rows x 4 octets of a warp use 32 banks.
__device__ inline int staged_place(int j) { return j * kProjectRows + j / kOctet * kOctet; }

// Each thread loads an octet from each of four rows, eight apart, before it waits for the first.
template <typename T>
__device__ void stage_rows(MatrixView<const T> g, const BlockRows& p, const ProjectCut& cut,
                           const ProjectTile& tile, float* staged) {
  constexpr int kAhead = 4, kApart = 8;
  const int octets = cut.octets(), of_group = cut.depth / kOctet;
  const int pieces = octets * (kProjectRows / kAhead);
  for (int e = static_cast<int>(threadIdx.x); e < pieces; e += kProjectThreads) {
    const int octet = e / kApart % octets;
    const int row = e % kApart + e / kApart / octets * (kAhead * kApart);
    const std::int64_t group = tile.group + octet / of_group;
    const std::int64_t col = group * p.block + tile.depth + octet % of_group * kOctet;
    const std::int64_t left = g.rows - tile.row - row;
    Octet<T> x[kAhead];
    load_octets(g.row(tile.row + row) + col, kApart * g.stride, (left + kApart - 1) / kApart,
                octet_count(col, tile.group_end(p, group)), x);
#pragma unroll
    for (int r = 0; r < kAhead; ++r) {
#pragma unroll
      for (int k = 0; k < kOctet; ++k) {
        staged[staged_place(octet * kOctet + k) + row + r * kApart] = value_of(x[r], k);
      }
    }
  }
}

// Stages row after row of P, with the columns of the units in each; zeros where P has none.
__device__ inline void stage_values(const BlockRows& p, const ProjectCut& cut,
                                    const ProjectTile& tile, float* staged) {
  const int elems = cut.staged_values();
  for (int e = static_cast<int>(threadIdx.x); e < elems; e += kProjectThreads) {
    const int unit = e / kUnitCols % kProjectUnits;
    const std::int64_t group = tile.group + unit / cut.tile_units;
    const std::int64_t col = (tile.first_unit + unit % cut.tile_units) * kUnitCols + e % kUnitCols;
    const std::int64_t row = group * p.block + tile.depth + e / (kUnitCols * kProjectUnits);
    const bool is = col < p.kept && row < tile.group_end(p, group);
    staged[e] = is ? __ldg(p.value + row * p.kept + col) : 0.0F;
  }
}

// sum[c][i] += P[j][c] G[i][j] for `depth` rows j of P, ascending.
__device__ inline void add_unit(const float* columns, const float* values, int first, int depth,
                                float (&sum)[kUnitCols][kOctet]) {
  for (int j = 0; j < depth; ++j) {
    const float* const at = columns + staged_place(first + j);
    const float4 x = *reinterpret_cast<const float4*>(at);
    const float4 y = *reinterpret_cast<const float4*>(at + kProjectRows / 2);
    const float4 factors = reinterpret_cast<const float4*>(values)[j * kProjectUnits];
    const float factor[kUnitCols] = {factors.x, factors.y, factors.z, factors.w};
#pragma unroll
    for (int c = 0; c < kUnitCols; ++c) {
      sum[c][0] = fmaf(factor[c], x.x, sum[c][0]);
      sum[c][1] = fmaf(factor[c], x.y, sum[c][1]);
      sum[c][2] = fmaf(factor[c], x.z, sum[c][2]);
      sum[c][3] = fmaf(factor[c], x.w, sum[c][3]);
      sum[c][4] = fmaf(factor[c], y.x, sum[c][4]);
      sum[c][5] = fmaf(factor[c], y.y, sum[c][5]);
      sum[c][6] = fmaf(factor[c], y.z, sum[c][6]);
      sum[c][7] = fmaf(factor[c], y.w, sum[c][7]);
    }
  }
}

// Rounds to nearest even: `count` columns of four rows from `row` on, and of four rows 32 further
// on.
template <typename T>
__device__ void store_unit(MatrixView<T> w, std::int64_t row, std::int64_t col, int count,
                           const float (&sum)[kUnitCols][kOctet]) {
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const std::int64_t at = row + i % 4 + i / 4 * (kProjectRows / 2);
    if (at >= w.rows) continue;
#pragma unroll
    for (int c = 0; c < kUnitCols; ++c) {
      if (c < count) w.row(at)[col + c] = from_float<T>(sum[c][i]);
    }
  }
}

__device__ inline void store_unit(const AnyMatrix& w, std::int64_t row, std::int64_t col, int count,
                                  const float (&sum)[kUnitCols][kOctet]) {
  switch (w.dtype) {
    case DType::kF32:
      return store_unit(w.as<float>(), row, col, count, sum);
    case DType::kF16:
      return store_unit(w.as<f16>(), row, col, count, sum);
    case DType::kBF16:
      return store_unit(w.as<bf16>(), row, col, count, sum);
  }
}

// A block has 64 rows of G and 16 units of four kept columns, from several groups if one has fewer.
// A thread has eight rows of one unit; their sums stay in its registers and go down the rows of P,
// fused. Loads: octets of G, 16 bytes a lane for a 16-bit type, 64 contiguous bytes of a row, which
// are whole sectors; contiguous values of P in a group. Shared memory: 32 KiB of G, with columns as
// rows and in f32, and at most 8 KiB of P; three loads of 16 bytes without bank conflicts for 32
// fused multiply-adds. Stores: 16 columns of a row a warp, whole sectors for a 16-bit type. Roof:
// (m + d) T sizeof bytes for groups that keep at most 64 columns; wider groups read G again from
// the second-level cache for each 64 columns; 2 k m T flop, which limit first above k = 12 or so.
template <typename T>
__global__ void project_blocks(AnyMatrix w, MatrixView<const T> g, BlockRows p, ProjectCut cut) {
  auto* const rows = dynamic_shared<float>();
  auto* const values = rows + cut.staged_rows();
  const int row = static_cast<int>(threadIdx.x) % 8 * 4;
  const int unit = static_cast<int>(threadIdx.x) / 8;
  const int of_tile = unit / cut.tile_units;
  for (std::int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    ProjectTile tile{item / cut.unit_tiles / cut.group_tiles * kProjectRows,
                     item / cut.unit_tiles % cut.group_tiles * cut.groups,
                     item % cut.unit_tiles * kProjectUnits, 0};
    const std::int64_t group = tile.group + of_tile;
    const std::int64_t col = (tile.first_unit + unit % cut.tile_units) * kUnitCols;
    const std::int64_t kept = group + 1 < p.groups() ? p.kept : p.last_kept;
    const bool is = of_tile < cut.groups && group < p.groups();
    const auto count = static_cast<int>(is ? min(kept - col, std::int64_t{kUnitCols}) : 0);
    const std::int64_t group_rows = tile.group_end(p, group) - group * p.block;
    float sum[kUnitCols][kOctet] = {};
    for (; tile.depth < min(p.block, p.rows); tile.depth += cut.depth) {
      __syncthreads();  // Until all have read the previous rows.
      stage_rows(g, p, cut, tile, rows);
      stage_values(p, cut, tile, values);
      __syncthreads();
      if (count <= 0) continue;
      add_unit(rows + row, values + unit * kUnitCols, of_tile * cut.depth,
               static_cast<int>(min(group_rows - tile.depth, std::int64_t{cut.depth})), sum);
    }
    if (count > 0) store_unit(w, tile.row + row, group * p.kept + col, count, sum);
  }
}

template <typename T>
void run_project_blocks(const char* name, const AnyMatrix& w, MatrixView<const T> g,
                        const BlockRows& p, StreamRef stream) {
  if (p.groups() == 0) return;
  const ProjectCut cut = ProjectCut::of(p, g.rows);
  const auto elems = static_cast<std::size_t>(cut.staged_rows() + cut.staged_values());
  const Shape shape{GridLimits().blocks(cut.items), kProjectThreads, elems * sizeof(float)};
  launch(name, Kernel<project_blocks<T>>(), shape, stream, w, g, p, cut);
}

}  // namespace sluiceway::cuda
