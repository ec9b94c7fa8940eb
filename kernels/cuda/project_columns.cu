#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/expand_sparse.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octet.cuh"
#include "kernels/cuda/project_columns.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/cuda/shared.cuh"
#include "kernels/cuda/sparse_product.h"

namespace sluiceway::cuda {
namespace {

static_assert(kMostStagedCols * sizeof(float) == kGatherBytes);

// ---- In shared memory ---------------------------------------------------------------------------

// Rounds to nearest even; all lanes take the same branch.
__device__ inline void store_any(const AnyMatrix& m, std::int64_t row, std::int64_t col, float x) {
  const std::int64_t at = row * m.stride + col;
  switch (m.dtype) {
    case DType::kF32:
      static_cast<float*>(m.data)[at] = x;
      return;
    case DType::kF16:
      static_cast<f16*>(m.data)[at] = from_float<f16>(x);
      return;
    case DType::kBF16:
      static_cast<bf16*>(m.data)[at] = from_float<bf16>(x);
      return;
  }
}

// y[i][c] = sum of G[first + i][j] Q[j][c] over the nonzeros of column c, ascending. A block has
// kRows rows of G in shared memory, interleaved, so that one gathered load per nonzero of Q serves
// all of them, and a slice of 256 columns c, one a thread.
//
// Loads: octets of G, 16 bytes a lane for a 16-bit type; the nonzeros of a column are contiguous,
// and neighbouring lanes read neighbouring lists. Roof: m n sizeof(T) bytes of G once a slice, all
// but the first from the second-level cache; 2 r m n flop; and r m n / (32 kRows) gathering
// instructions.
template <int kRows, typename T>
__global__ void gather_columns(MatrixView<const T> g, SparseColumns q, AnyMatrix y,
                               std::int64_t slices) {
  auto* const staged = dynamic_shared<float>();
  const std::int64_t first = blockIdx.x / slices * kRows;
  for (std::int64_t j = threadIdx.x * kOctet; j < g.cols; j += kMaxThreads * kOctet) {
    const int count = octet_count(j, g.cols);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float x[kOctet];
      load_values(g.row(first + r) + j, first + r < g.rows ? count : 0, x);
#pragma unroll
      for (int k = 0; k < kOctet; ++k) {
        if (k < count) staged[(j + k) * kRows + r] = x[k];
      }
    }
  }
  __syncthreads();
  const std::int64_t c = blockIdx.x % slices * kMaxThreads + threadIdx.x;
  if (c >= q.cols) return;
  float sum[kRows] = {};
  for (std::int32_t e = __ldg(q.offset + c), end = __ldg(q.offset + c + 1); e < end; ++e) {
    const std::int64_t j = __ldg(q.row + e);
    const float factor = __ldg(q.value + e);
    float x[kRows];
    load_rows(staged + j * kRows, x);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = fmaf(factor, x[r], sum[r]);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (first + r < y.rows) store_any(y, first + r, c, sum[r]);
  }
}

template <typename T>
void gather(const char* name, MatrixView<const T> g, const SparseColumns& q, const AnyMatrix& y,
            StreamRef stream) {
  const std::int64_t slices = (q.cols + kMaxThreads - 1) / kMaxThreads;
  const auto run = [&](auto kernel, std::int64_t rows) {
    const std::int64_t blocks = (g.rows + rows - 1) / rows * slices;
    const auto bytes = static_cast<std::size_t>(rows * g.cols) * sizeof(float);
    launch(name, kernel, {static_cast<unsigned>(blocks), kMaxThreads, bytes}, stream, g, q, y,
           slices);
  };
  if (4 * g.cols <= kMostStagedCols) return run(Kernel<gather_columns<4, T>>(), 4);
  if (2 * g.cols <= kMostStagedCols) return run(Kernel<gather_columns<2, T>>(), 2);
  run(Kernel<gather_columns<1, T>>(), 1);
}

// ---- By the library -----------------------------------------------------------------------------

// Converts to or from f32, with rounding. Reads and writes each element once.
template <typename From, typename To>
struct CopyOp {
  MatrixView<const From> from;
  MatrixView<To> to;

  __device__ void take(std::int64_t row, std::int64_t col, int count) const {
    float x[kOctet];
    load_values(from.row(row) + col, count, x);
    store_nearest(to.row(row) + col, x, count);
  }
};

template <typename From, typename To>
void copy(const char* name, MatrixView<const From> from, MatrixView<To> to, StreamRef stream) {
  run_row_pass(name, CopyOp<From, To>{from, to}, from.rows, from.cols, stream);
}

// Returns G as f32: itself, or a copy in `wide`.
MatrixView<const float> widened(const char* name, const AnyMatrix& g, float* wide,
                                StreamRef stream) {
  if (g.dtype == DType::kF32) return g.as<const float>();
  const MatrixView<float> to(wide, g.rows, g.cols);
  if (g.dtype == DType::kBF16) {
    copy(name, g.as<const bf16>(), to, stream);
  } else {
    copy(name, g.as<const f16>(), to, stream);
  }
  return to;
}

void round_to(const char* name, const AnyMatrix& y, MatrixView<const float> exact,
              StreamRef stream) {
  if (y.dtype == DType::kBF16) return copy(name, exact, y.as<bf16>(), stream);
  copy(name, exact, y.as<f16>(), stream);
}

// Y^T = Q^T G^T, some rows of G at a time. A 16-bit G is also written and read once as f32; so is a
// 16-bit Y.
void by_library(const char* name, const AnyMatrix& g, const SparseColumns& q, const AnyMatrix& y,
                std::span<float> scratch, StreamRef stream) {
  const SparseMatrix columns{q.offset, q.row, q.value, q.cols, q.rows, q.nonzeros};
  const bool rounds = y.dtype != DType::kF32;
  const std::int64_t row_elems = library_row_elems(g.dtype, q, y.dtype);
  const std::int64_t elems = static_cast<std::int64_t>(scratch.size()) - 2 * kPadElems;
  const std::int64_t room = row_elems == 0 ? g.rows : elems / row_elems;
  ScratchCutter cut(scratch);
  float* const exact = rounds ? cut.take(room * y.cols) : nullptr;
  float* const wide = cut.rest().data();
  for (std::int64_t first = 0; first < g.rows; first += room) {
    const std::int64_t last = std::min(first + room, g.rows);
    const AnyMatrix to = y.row_range(first, last);
    const MatrixView<float> out(rounds ? MatrixView<float>(exact, to.rows, to.cols)
                                       : to.as<float>());
    sparse_product(1.0F, columns, SparseForm::kTransposed,
                   widened(name, g.row_range(first, last), wide, stream), 0.0F, out,
                   SumOrder::kFixed, stream);
    if (rounds) round_to(name, to, out, stream);
  }
}

}  // namespace

std::int64_t library_row_elems(DType g, const SparseColumns& q, DType y) {
  if (!is_wide(q.rows)) return 0;
  return (g == DType::kF32 ? 0 : q.rows) + (y == DType::kF32 ? 0 : q.cols);
}

void project_columns(const char* name, const AnyMatrix& g, const SparseColumns& q,
                     const AnyMatrix& y, std::span<float> scratch, StreamRef stream) {
  if (is_wide(q.rows)) return by_library(name, g, q, y, scratch, stream);
  with_elements(g, [&](auto view) { gather(name, view, q, y, stream); });
}

}  // namespace sluiceway::cuda
