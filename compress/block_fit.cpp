#include "compress/block_fit.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"

namespace sluiceway {
namespace {

using MatrixF64 = Eigen::MatrixXd;

double element(const AnyMatrix& g, std::int64_t i, std::int64_t j) {
  const std::int64_t at = i * g.stride + j;
  switch (g.dtype) {
    case DType::kF16:
      return static_cast<double>(to_float(static_cast<const f16*>(g.data)[at]));
    case DType::kBF16:
      return static_cast<double>(to_float(static_cast<const bf16*>(g.data)[at]));
    case DType::kF32:
      break;
  }
  return static_cast<double>(static_cast<const float*>(g.data)[at]);
}

// Returns rows (or columns) [first, first + count) of g as the rows of the result.
MatrixF64 group_of(const AnyMatrix& g, Side side, std::int64_t first, std::int64_t count) {
  const bool rows = side == Side::kRows;
  MatrixF64 group(count, rows ? g.cols : g.rows);
  for (std::int64_t a = 0; a < group.rows(); ++a) {
    for (std::int64_t b = 0; b < group.cols(); ++b) {
      group(a, b) = rows ? element(g, first + a, b) : element(g, b, first + a);
    }
  }
  return group;
}

void check_layout(const BlockRows& layout, std::int64_t rows, std::size_t values) {
  SLUICEWAY_CHECK(layout.rows == rows && static_cast<std::int64_t>(values) == rows * layout.kept,
                  "block projector: has ", layout.rows, " rows and ", values, " values, expected ",
                  rows, " rows and ", rows * layout.kept, " values");
}

}  // namespace

void fit_block_pca(const AnyMatrix& g, Side side, const BlockRows& layout, std::span<float> value) {
  check_layout(layout, side == Side::kRows ? g.rows : g.cols, value.size());
  std::fill(value.begin(), value.end(), 0.0F);
  for (std::int64_t group = 0; group < layout.groups(); ++group) {
    const std::int64_t first = group * layout.block;
    const std::int64_t rows = std::min(layout.block, layout.rows - first);
    const std::int64_t kept = group + 1 == layout.groups() ? layout.last_kept : layout.kept;
    const MatrixF64 of_group = group_of(g, side, first, rows);
    const Eigen::SelfAdjointEigenSolver<MatrixF64> solver(of_group * of_group.transpose());
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t c = 0; c < kept; ++c) {  // Eigen sorts ascending.
        value[static_cast<std::size_t>((first + i) * layout.kept + c)] =
            static_cast<float>(solver.eigenvectors()(i, rows - 1 - c));
      }
    }
  }
}

void fit_top_columns(const AnyMatrix& g, const BlockRows& layout, std::span<float> value) {
  check_layout(layout, g.cols, value.size());
  std::vector<double> squares(static_cast<std::size_t>(g.cols));
  for (std::int64_t i = 0; i < g.rows; ++i) {
    for (std::int64_t j = 0; j < g.cols; ++j) {
      const double x = element(g, i, j);
      squares[static_cast<std::size_t>(j)] += x * x;
    }
  }
  std::vector<std::size_t> order(squares.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return squares[a] > squares[b]; });
  std::fill(value.begin(), value.end(), 0.0F);
  for (std::int64_t c = 0; c < layout.kept; ++c) {
    const auto row = static_cast<std::int64_t>(order[static_cast<std::size_t>(c)]);
    value[static_cast<std::size_t>(row * layout.kept + c)] = 1.0F;
  }
}

void fill_unit_blocks(const BlockRows& layout, std::span<float> value) {
  check_layout(layout, layout.rows, value.size());
  std::fill(value.begin(), value.end(), 0.0F);
  for (std::int64_t i = 0; i < layout.rows; ++i) {
    value[static_cast<std::size_t>(i * layout.kept + i % layout.block)] = 1.0F;
  }
}

}  // namespace sluiceway
