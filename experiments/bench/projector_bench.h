// Parts that the benchmarks of compress, decompress and bias_norm share: random projectors, timing
// of the best iteration, and the counters.
#pragma once

#include <benchmark/benchmark.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "experiments/bench/roof.h"
#include "kernels/base/view.h"
#include "kernels/sparse_columns.h"

namespace sluiceway::bench {

inline std::vector<float> random_values(std::int64_t elems, std::uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<float> out(static_cast<std::size_t>(elems));
  for (float& x : out) x = static_cast<float>(bits()) * 0x1p-32F - 0.5F;
  return out;
}

// Aligned to cache lines, as libtorch allocates.
template <typename T>
using Array = hwy::AlignedFreeUniquePtr<T[]>;

template <typename T>
Array<T> random_array(std::int64_t elems, std::uint32_t seed) {
  const std::vector<float> values = random_values(elems, seed);
  Array<T> out = hwy::AllocateAligned<T>(values.size());
  std::transform(values.begin(), values.end(), out.get(), from_float<T>);
  return out;
}

struct SparseSide {
  std::int64_t rows, cols, nnz;
  std::vector<std::int32_t> index, offset, row;
  std::vector<float> value, column_value;

  SparseSide(std::int64_t r, std::int64_t c, std::int64_t k)
      : rows(r), cols(c), nnz(k), value(random_values(r * k, 5)) {
    std::mt19937 bits(11);
    for (std::int64_t i = 0; i < rows; ++i) {
      std::vector<std::int32_t> taken;
      while (static_cast<std::int64_t>(taken.size()) < nnz) {
        const auto column = static_cast<std::int32_t>(bits() % static_cast<std::uint32_t>(cols));
        if (std::find(taken.begin(), taken.end(), column) == taken.end()) taken.push_back(column);
      }
      index.insert(index.end(), taken.begin(), taken.end());
    }
    offset.resize(static_cast<std::size_t>(cols) + 1);
    row.resize(index.size());
    column_value.resize(index.size());
    sparse_columns(view(), offset, row, column_value);
  }
  SparseRows view() const { return {index.data(), value.data(), rows, cols, nnz}; }
  SparseColumns columns() const {
    return {offset.data(), row.data(), column_value.data(), rows, cols, rows * nnz};
  }
};

struct BlockSide {
  std::int64_t rows, block, kept;
  std::vector<float> value;

  BlockSide(std::int64_t r, std::int64_t b, std::int64_t k)
      : rows(r), block(b), kept(k), value(random_values(r * k, 7)) {}
  BlockRows view() const { return {value.data(), rows, rows / block * kept, block, kept, kept}; }
};

// Runs `f` in the loop and returns the seconds of the fastest iteration.
template <typename F>
double best_seconds(benchmark::State& state, const F& f) {
  double best = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    const double start = thread_seconds();
    f();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

// Measures the roof again, next to the kernel that it is compared with.
inline void report(benchmark::State& state, double seconds, double bytes, double flop,
                   double Roof::*bytes_roof) {
  const Roof& top = roof(true);
  const double bound = top.bound_s(bytes, top.*bytes_roof, flop);
  state.counters["gb_per_s"] = bytes / seconds / 1e9;
  state.counters["gflop_per_s"] = flop / seconds / 1e9;
  state.counters["roof_ratio"] = bound / seconds;
  state.counters["bytes_bind"] = bytes / (1e9 * top.*bytes_roof) >= bound ? 1 : 0;
}

// Computes the products with a sparse-matrix library (Eigen, P and Q compressed by rows): P^T G Q
// into `s`, and W + alpha P D Q^T into `w`. Returns the seconds of the fastest of a few calls.
double sparse_library_compress_s(MatrixView<const float> g, const SparseRows& p,
                                 const SparseRows& q);
double sparse_library_decompress_s(MatrixView<float> w, MatrixView<const float> d,
                                   const SparseRows& p, const SparseRows& q);

// Converts blocks to the general sparse matrices that such a library takes.
SparseSide as_sparse(const BlockSide& side);

}  // namespace sluiceway::bench
