// Eigen's sparse products. Only this file is compiled for the machine that builds it, so that the
// portable baseline of the build does not slow the library down.
#include <Eigen/SparseCore>

#include "experiments/bench/projector_bench.h"

namespace sluiceway::bench {
namespace {

using Sparse = Eigen::SparseMatrix<float, Eigen::RowMajor, std::int32_t>;
using Dense = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Sparse library_matrix(const SparseRows& p) {
  std::vector<Eigen::Triplet<float, std::int32_t>> entries;
  for (std::int64_t i = 0; i < p.rows; ++i) {
    for (std::int64_t k = 0; k < p.nnz; ++k) {
      entries.emplace_back(static_cast<std::int32_t>(i), p.index[i * p.nnz + k],
                           p.value[i * p.nnz + k]);
    }
  }
  Sparse out(p.rows, p.cols);
  out.setFromTriplets(entries.begin(), entries.end());
  return out;
}

template <typename F>
double fastest_of_three(const F& f) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 3; ++round) {
    const double start = thread_seconds();
    f();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

}  // namespace

double sparse_library_compress_s(MatrixView<const float> g, const SparseRows& p,
                                 const SparseRows& q) {
  const Sparse left = library_matrix(p), right = library_matrix(q);
  const Eigen::Map<const Dense> gradient(g.data, g.rows, g.cols);
  Dense half(p.cols, g.cols), core(p.cols, q.cols);
  // Q comes second as (Q^T half^T)^T, which is several times faster in Eigen than dense times
  // sparse.
  return fastest_of_three([&] {
    half.noalias() = left.transpose() * gradient;
    core.noalias() = half * right;
    benchmark::DoNotOptimize(core.data());
  });
}

double sparse_library_decompress_s(MatrixView<float> w, MatrixView<const float> d,
                                   const SparseRows& p, const SparseRows& q) {
  const Sparse left = library_matrix(p), right = library_matrix(q);
  Eigen::Map<Dense> weight(w.data, w.rows, w.cols);
  const Eigen::Map<const Dense> core(d.data, d.rows, d.cols);
  Dense half(p.cols, q.rows);
  return fastest_of_three([&] {
    half.noalias() = core * right.transpose();
    weight.noalias() += 0.01F * (left * half);
    benchmark::DoNotOptimize(weight.data());
  });
}

SparseSide as_sparse(const BlockSide& side) {
  SparseSide out(side.rows, side.rows / side.block * side.kept, side.kept);
  for (std::int64_t i = 0; i < side.rows; ++i) {
    for (std::int64_t k = 0; k < side.kept; ++k) {
      out.index[static_cast<std::size_t>(i * side.kept + k)] =
          static_cast<std::int32_t>(i / side.block * side.kept + k);
    }
  }
  return out;
}

}  // namespace sluiceway::bench
