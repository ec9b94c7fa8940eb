#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/means.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream_scratch.cuh"

namespace sluiceway::cuda {
namespace {

constexpr std::int64_t kStripCols = kMaxThreads * kOctet;  // An octet a thread.
constexpr std::int64_t kRowsAtOnce = 32;                   // Between two barriers of a block.
constexpr int kRowsAhead = 4;                              // Loaded together.
constexpr unsigned kWarps = kMaxThreads / 32;
constexpr std::int64_t kWarpCols = kStripCols / kWarps;

// What two kernels hand over: the sums of each row over a strip of columns, and of each column over
// a slab of rows. Both fit into the stream's scratch.
struct Parts {
  float* of_rows;  // strips x rows
  float* of_cols;  // slabs x cols
  std::int64_t strips, slabs, slab_rows;

  static constexpr auto kHalf = static_cast<std::int64_t>(StreamScratch::capacity<float>() / 2);

  static Parts of(std::int64_t rows, std::int64_t cols, float* scratch) {
    const std::int64_t strips = (cols + kStripCols - 1) / kStripCols;
    const std::int64_t most = std::clamp<std::int64_t>(kHalf / cols, 1, 1024);
    const std::int64_t slab_rows =
        std::max(kRowsAtOnce, (rows + most - 1) / most + kRowsAtOnce - 1) / kRowsAtOnce *
        kRowsAtOnce;
    return {scratch, scratch + kHalf, strips, (rows + slab_rows - 1) / slab_rows, slab_rows};
  }
};

// A block has a strip of 2048 columns of a slab of rows, and a thread an octet of those: the sums
// of its columns stay in registers, those of a row go over the warp by five shuffles, and over the
// block 32 rows at a time. Loads are of 16 bytes, 512 side by side a warp of a 16-bit type. Roof:
// m n sizeof(T) bytes; 4 flop an element.
template <typename T>
__global__ void sum_squares(MatrixView<const T> g, float scale, Parts parts) {
  __shared__ float row_sums[kWarps][kRowsAtOnce];
  const std::int64_t strip = blockIdx.x % parts.strips, slab = blockIdx.x / parts.strips;
  const std::int64_t col = strip * kStripCols + threadIdx.x * kOctet;
  const int count = octet_count(col, g.cols);
  const unsigned warp = threadIdx.x / 32;
  const auto warps = static_cast<unsigned>(  // That have columns.
      min((g.cols - strip * kStripCols + kWarpCols - 1) / kWarpCols, std::int64_t{kWarps}));
  const std::int64_t first = slab * parts.slab_rows;
  const std::int64_t end = min(first + parts.slab_rows, g.rows);
  float col_sums[kOctet] = {};
  for (std::int64_t row = first; row < end; row += kRowsAtOnce) {
    const std::int64_t rows = min(kRowsAtOnce, end - row);
    for (std::int64_t ahead = 0; warp < warps && ahead < rows; ahead += kRowsAhead) {
      Octet<T> octets[kRowsAhead];
      load_octets(g.row(row + ahead) + col, g.stride, rows - ahead, count, octets);
#pragma unroll
      for (int r = 0; r < kRowsAhead; ++r) {  // Rows that are not there are zeros.
        float sum = 0.0F;
#pragma unroll
        for (int k = 0; k < kOctet; ++k) {
          const float scaled = __fmul_rn(scale, value_of(octets[r], k));
          sum = fmaf(scaled, scaled, sum);
          col_sums[k] = fmaf(scaled, scaled, col_sums[k]);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) row_sums[warp][ahead + r] = sum;
      }
    }
    __syncthreads();
    if (threadIdx.x < rows) {
      float sum = 0.0F;
      for (unsigned w = 0; w < warps; ++w) sum += row_sums[w][threadIdx.x];
      parts.of_rows[strip * g.rows + row + threadIdx.x] = sum;
    }
    __syncthreads();  // The next rows write here.
  }
  store_nearest(parts.of_cols + slab * g.cols + col, col_sums, count);
}

struct Join {  // means[i] = factor * (sum over parts, ascending); `more` adds to what is there.
  const float* parts;
  std::int64_t count, elems;
  float factor;
  bool more;
  float* means;

  __device__ void make(std::int64_t i) const {
    float sum = 0.0F;
#pragma unroll 8
    for (std::int64_t part = 0; part < count; ++part) sum += parts[part * elems + i];
    means[i] = more ? fmaf(sum, factor, means[i]) : __fmul_rn(sum, factor);
  }
};

// Rows, then columns: one element a thread, 128 bytes side by side a warp. Roof: 4 count elems
// bytes of each read and 4 elems written (8 with `more`), a few hundredths of what sum_squares
// reads; one flop a part.
__global__ void join_parts(Join rows, Join cols) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < rows.elems) {
    rows.make(i);
  } else if (i - rows.elems < cols.elems) {
    cols.make(i - rows.elems);
  }
}

void join(const Join& rows, const Join& cols, StreamRef stream) {
  const std::int64_t elems = rows.elems + cols.elems;
  const auto grid = static_cast<unsigned>((elems + kMaxThreads - 1) / kMaxThreads);
  launch("mean_squares", Kernel<join_parts>(), {grid, kMaxThreads}, stream, rows, cols);
}

template <typename T>
void means_of(MatrixView<const T> g, float* rows, float* cols, float scale, StreamRef stream) {
  const StreamScratch scratch(stream);
  if (g.elems() == 0) {  // Nothing to sum: zeros.
    const float* const none = scratch.parts<float>();
    return join({none, 0, g.rows, 0.0F, false, rows}, {none, 0, g.cols, 0.0F, false, cols}, stream);
  }
  const float per_row = 1.0F / static_cast<float>(g.cols);
  const float per_col = 1.0F / static_cast<float>(g.rows);
  // A matrix whose sums the scratch has no room for is taken in parts, one after the other.
  for (std::int64_t col = 0; col < g.cols; col += Parts::kHalf) {
    const std::int64_t width = std::min(Parts::kHalf, g.cols - col);
    const std::int64_t most_rows = Parts::kHalf / ((width + kStripCols - 1) / kStripCols);
    for (std::int64_t row = 0; row < g.rows; row += most_rows) {
      const std::int64_t height = std::min(most_rows, g.rows - row);
      const MatrixView<const T> part(g.row(row) + col, height, width, g.stride);
      const Parts parts = Parts::of(height, width, scratch.parts<float>());
      launch("mean_squares", Kernel<sum_squares<T>>(),
             {static_cast<unsigned>(parts.strips * parts.slabs), kMaxThreads}, stream, part, scale,
             parts);
      join({parts.of_rows, parts.strips, height, per_row, col > 0, rows + row},
           {parts.of_cols, parts.slabs, width, per_col, row > 0, cols + col}, stream);
    }
  }
}

}  // namespace

void means_of_squares(const AnyMatrix& g, float* rows, float* cols, float scale, StreamRef stream) {
  with_elements(g, [&](auto view) { means_of(view, rows, cols, scale, stream); });
}

}  // namespace sluiceway::cuda
