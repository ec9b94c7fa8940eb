#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/compress_linear.h"
#include "kernels/cuda/project_blocks.cuh"
#include "kernels/cuda/project_columns.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/projector_checks.h"

namespace sluiceway::cuda {
namespace {

constexpr int kListedCols = 64;
// Entries of a list, which 32 bits count.
constexpr std::int64_t kMostEntries = std::int64_t{1} << 30;

// Ascending, in place; a list is short (r m / d entries on average), but nothing bounds it.
__device__ inline void sort_list(std::int32_t* list, int count) {
  for (int gap = count / 2; gap > 0; gap /= 2) {
    for (int i = gap; i < count; ++i) {
      const std::int32_t entry = list[i];
      int j = i;
      for (; j >= gap && list[j - gap] > entry; j -= gap) list[j] = list[j - gap];
      list[j] = entry;
    }
  }
}

// Lists the nonzeros of P by column, as sparse_columns() does on the host. A block has 64 columns:
// it counts the entries of each and those before them, puts the numbers of its entries into the
// lists in whatever order its threads arrive, and sorts each list, so that the result depends on
// the indices alone.
//
// Loads: contiguous indices, twice for each 64 columns, all but the first time from the
// second-level cache; scattered list entries. Roof: latency, of 2 r m / 1024 steps.
__global__ void list_columns(SparseRows p, std::int32_t* offset, std::int32_t* row, float* value) {
  __shared__ int counts[kListedCols];
  __shared__ int next[kListedCols];
  __shared__ int before;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto first = static_cast<int>(blockIdx.x) * kListedCols;
  const auto entries = static_cast<int>(p.rows * p.nnz);
  if (thread < kListedCols) counts[thread] = 0;
  if (thread == 0) before = 0;
  __syncthreads();
  int smaller = 0;
#pragma unroll 4
  for (int e = thread; e < entries; e += kMaxThreads) {
    const int c = __ldg(p.index + e) - first;
    if (c < 0) ++smaller;
    if (c >= 0 && c < kListedCols) atomicAdd(&counts[c], 1);
  }
  if (smaller != 0) atomicAdd(&before, smaller);
  __syncthreads();
  const bool has_list = thread < kListedCols && first + thread < p.cols;
  int begin = before;
  if (has_list) {
    for (int c = 0; c < thread; ++c) begin += counts[c];
    next[thread] = begin;
    offset[first + thread] = begin;
    if (first + thread + 1 == p.cols) offset[p.cols] = begin + counts[thread];
  }
  __syncthreads();
#pragma unroll 4
  for (int e = thread; e < entries; e += kMaxThreads) {
    const int c = __ldg(p.index + e) - first;
    if (c >= 0 && c < kListedCols) row[atomicAdd(&next[c], 1)] = e;
  }
  __syncthreads();
  if (!has_list) return;
  sort_list(row + begin, counts[thread]);
  for (int at = begin; at < begin + counts[thread]; ++at) {
    const std::int32_t e = row[at];
    value[at] = __ldg(p.value + e);
    row[at] = e / static_cast<std::int32_t>(p.nnz);
  }
}

// Builds the columns of p in `scratch`, which has room for them: project_scratch_elems().
SparseColumns columns_of(const SparseRows& p, std::span<float> scratch, StreamRef stream) {
  const std::int64_t entries = p.rows * p.nnz;
  SLUICEWAY_CHECK(entries <= kMostEntries, "project_rows: p has ", entries,
                  " nonzeros, expected at most ", kMostEntries);
  auto* const offset = reinterpret_cast<std::int32_t*>(scratch.data());
  std::int32_t* const row = offset + p.cols + 1;
  auto* const value = scratch.data() + p.cols + 1 + entries;
  const auto blocks = static_cast<unsigned>((p.cols + kListedCols - 1) / kListedCols);
  launch("project_rows", Kernel<list_columns>(), {blocks, kMaxThreads}, stream, p, offset, row,
         value);
  return {offset, row, value, p.rows, p.cols, entries};
}

}  // namespace

void project_rows(const AnyMatrix& w, const AnyMatrix& g, const SparseRows& p,
                  std::span<float> scratch, StreamRef stream) {
  check_project(w, g, p, scratch);
  if (g.rows == 0) return;
  const SparseColumns columns = columns_of(p, scratch, stream);
  const auto listed = static_cast<std::size_t>(p.cols + 1 + 2 * columns.nonzeros);
  project_columns("project_rows", g, columns, w, scratch.subspan(listed), stream);
}

// Shared memory holds both factors of a tile, so scratch is not used.
void project_rows(const AnyMatrix& w, const AnyMatrix& g, const BlockRows& p,
                  std::span<float> scratch, StreamRef stream) {
  check_project(w, g, p, scratch);
  with_elements(g, [&](auto view) { run_project_blocks("project_rows", w, view, p, stream); });
}

}  // namespace sluiceway::cuda
