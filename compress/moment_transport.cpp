#include "compress/moment_transport.h"

#include <Eigen/SparseCore>
#include <algorithm>
#include <vector>

#include "kernels/base/check.h"

namespace sluiceway {
namespace {

using Sparse = Eigen::SparseMatrix<float, Eigen::RowMajor>;
using Core = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using CoreMap = Eigen::Map<Core, 0, Eigen::OuterStride<>>;

CoreMap as_eigen(MatrixView<float> x) {
  return {x.data, x.rows, x.cols, Eigen::OuterStride<>(x.stride)};
}

// left^T right for two projectors of the same weight.
Sparse overlap(const SparseRows& left, const SparseRows& right) {
  std::vector<Eigen::Triplet<double>> entries;
  entries.reserve(static_cast<std::size_t>(left.rows * left.nnz * right.nnz));
  for (std::int64_t i = 0; i < left.rows; ++i) {
    for (std::int64_t a = i * left.nnz; a < (i + 1) * left.nnz; ++a) {
      for (std::int64_t b = i * right.nnz; b < (i + 1) * right.nnz; ++b) {
        entries.emplace_back(left.index[a], right.index[b],
                             static_cast<double>(left.value[a]) * right.value[b]);
      }
    }
  }
  Eigen::SparseMatrix<double, Eigen::RowMajor> sum(left.cols, right.cols);
  sum.setFromTriplets(entries.begin(), entries.end());
  return sum.cast<float>();
}

// The same for blocks with the same groups on both sides.
Sparse overlap(const BlockRows& left, const BlockRows& right) {
  using Panel = Eigen::Map<const Core, 0, Eigen::OuterStride<>>;
  std::vector<Eigen::Triplet<float>> entries;
  for (std::int64_t group = 0; group < left.groups(); ++group) {
    const bool last = group + 1 == left.groups();
    const std::int64_t first = group * left.block, kept = last ? left.last_kept : left.kept;
    const std::int64_t rows = last ? left.rows - first : left.block;
    const auto panel = [&](const BlockRows& x) {
      return Panel(x.value + first * x.kept, rows, kept, Eigen::OuterStride<>(x.kept));
    };
    const Eigen::MatrixXd sum =
        panel(left).cast<double>().transpose() * panel(right).cast<double>();
    for (std::int64_t i = 0; i < kept; ++i) {
      for (std::int64_t j = 0; j < kept; ++j) {
        entries.emplace_back(static_cast<int>(group * left.kept + i),
                             static_cast<int>(group * left.kept + j),
                             static_cast<float>(sum(i, j)));
      }
    }
  }
  Sparse all(left.cols, right.cols);
  all.setFromTriplets(entries.begin(), entries.end());
  return all;
}

// V <- A V B for V = row col^T / mean(row): the product has rank one again, and its row and column
// means are the new factors.
void multiply_from_both_sides(const FactoredMoment& v, const Sparse& a, const Sparse& b) {
  using Vector = Eigen::Map<Eigen::VectorXf>;
  Vector row(v.row.data(), static_cast<Eigen::Index>(v.row.size()));
  Vector col(v.col.data(), static_cast<Eigen::Index>(v.col.size()));
  const float before = row.mean();
  if (before == 0) return;  // No step has run yet.
  const Eigen::VectorXf new_row = a * row, new_col = b.transpose() * col;
  row = new_row * (new_col.mean() / before);
  col = new_col * (new_row.mean() / before);
}

void fill_zero(MatrixView<float> x) {
  for (std::int64_t i = 0; i < x.rows; ++i) std::fill_n(x.row(i), x.cols, 0.0F);
}

template <class Rows>
void check_moment(const char* name, MatrixView<float> x, const Rows& p, const Rows& q) {
  SLUICEWAY_CHECK(x.rows == p.cols && x.cols == q.cols, "transport_moments: ", name, " is ", x.rows,
                  "x", x.cols, ", expected ", p.cols, "x", q.cols);
}

template <class Rows>
void check_same_shape(const char* name, const Rows& a, const Rows& b) {
  SLUICEWAY_CHECK(a.rows == b.rows && a.cols == b.cols, "transport_moments: new ", name, " is ",
                  b.rows, "x", b.cols, ", expected ", a.rows, "x", a.cols, ", the old shape");
}

template <class Rows>
void transport(MomentTransport how, const Moments& moments, const Rows& p_old, const Rows& p_new,
               const Rows& q_old, const Rows& q_new) {
  check_same_shape("P", p_old, p_new);
  check_same_shape("Q", q_old, q_new);
  check_moment("m", moments.m, p_old, q_old);
  const bool factored = !moments.factored.row.empty();
  if (factored) {
    const FactoredMoment& v = moments.factored;
    SLUICEWAY_CHECK(static_cast<std::int64_t>(v.row.size()) == p_old.cols &&
                        static_cast<std::int64_t>(v.col.size()) == q_old.cols,
                    "transport_moments: factored v is ", v.row.size(), "x", v.col.size(),
                    ", expected ", p_old.cols, "x", q_old.cols);
  } else {
    check_moment("v", moments.v, p_old, q_old);
  }
  switch (how) {
    case MomentTransport::kKeep:
      return;
    case MomentTransport::kReset:
      fill_zero(moments.m);
      fill_zero(moments.v);
      std::fill(moments.factored.row.begin(), moments.factored.row.end(), 0.0F);
      std::fill(moments.factored.col.begin(), moments.factored.col.end(), 0.0F);
      return;
    case MomentTransport::kProjected:
      break;
  }
  const Sparse a = overlap(p_new, p_old);
  const Sparse b = overlap(q_old, q_new);
  const Sparse a_squared = a.cwiseProduct(a), b_squared = b.cwiseProduct(b);
  // Allocate before the first moment is written.
  const Core left = a * as_eigen(moments.m);
  if (factored) {
    multiply_from_both_sides(moments.factored, a_squared, b_squared);
  } else {
    const Core left_squared = a_squared * as_eigen(moments.v);
    as_eigen(moments.v).noalias() = left_squared * b_squared;
  }
  as_eigen(moments.m).noalias() = left * b;
}

}  // namespace

void transport_moments(MomentTransport how, const Moments& moments, const SparseRows& p_old,
                       const SparseRows& p_new, const SparseRows& q_old, const SparseRows& q_new) {
  transport(how, moments, p_old, p_new, q_old, q_new);
}

void transport_moments(MomentTransport how, const Moments& moments, const BlockRows& p_old,
                       const BlockRows& p_new, const BlockRows& q_old, const BlockRows& q_new) {
  transport(how, moments, p_old, p_new, q_old, q_new);
}

}  // namespace sluiceway
