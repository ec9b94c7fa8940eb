// Owned projectors, their dense form, and double-precision references of the kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/base/view.h"
#include "kernels/bias_norm.h"
#include "kernels/sparse_columns.h"
#include "tests/support/matrix.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

struct OwnedSparseRows {
  std::int64_t rows = 0, cols = 0, nnz = 0;
  std::vector<std::int32_t> index;
  std::vector<float> value;
  std::vector<std::int32_t> offset, row;  // By column.
  std::vector<float> column_value;

  SparseRows view() const { return {index.data(), value.data(), rows, cols, nnz}; }
  SparseColumns columns() const {
    return {offset.data(), row.data(), column_value.data(), rows, cols, rows * nnz};
  }
};

struct OwnedBlockRows {
  BlockRows shape;
  std::vector<float> value;

  BlockRows view() const {
    BlockRows v = shape;
    v.value = value.data();
    return v;
  }
};

// nnz distinct columns a row, normal values of variance 1 / nnz.
inline OwnedSparseRows random_sparse(Rng& rng, std::int64_t rows, std::int64_t cols,
                                     std::int64_t nnz) {
  OwnedSparseRows p{rows, cols, nnz, {}, {}, {}, {}, {}};
  std::vector<std::int32_t> columns(static_cast<std::size_t>(cols));
  std::iota(columns.begin(), columns.end(), 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t k = 0; k < nnz; ++k) {  // Partial Fisher-Yates shuffle.
      const std::int64_t other = k + rng.below(cols - k);
      std::swap(columns[static_cast<std::size_t>(k)], columns[static_cast<std::size_t>(other)]);
      p.index.push_back(columns[static_cast<std::size_t>(k)]);
    }
  }
  p.value =
      rng.vector(rows * nnz, 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(nnz, 1))));
  p.offset.resize(static_cast<std::size_t>(cols) + 1);
  p.row.resize(p.index.size());
  p.column_value.resize(p.index.size());
  sparse_columns(p.view(), p.offset, p.row, p.column_value);
  return p;
}

// Normal values, not orthonormal: kernels do not rely on that, and a reference sees more this way.
inline OwnedBlockRows random_blocks(Rng& rng, std::int64_t rows, std::int64_t block,
                                    std::int64_t kept) {
  OwnedBlockRows p;
  p.shape.rows = rows;
  p.shape.block = block;
  p.shape.kept = kept;
  const std::int64_t last_rows = rows % block == 0 ? block : rows % block;
  p.shape.last_kept =
      rows % block == 0 ? kept : std::min(kept, (last_rows * kept + block - 1) / block);
  p.shape.cols = rows == 0 ? 0 : (p.shape.groups() - 1) * kept + p.shape.last_kept;
  p.value = rng.vector(rows * kept, 1.0 / std::sqrt(static_cast<double>(block)));
  return p;
}

inline MatrixF64 dense(const SparseRows& p) {
  MatrixF64 out(p.rows, p.cols);
  for (std::int64_t i = 0; i < p.rows; ++i) {
    for (std::int64_t k = 0; k < p.nnz; ++k) {
      out(i, p.index[i * p.nnz + k]) += static_cast<double>(p.value[i * p.nnz + k]);
    }
  }
  return out;
}

inline MatrixF64 dense(const BlockRows& p) {
  MatrixF64 out(p.rows, p.cols);
  for (std::int64_t i = 0; i < p.rows; ++i) {
    const std::int64_t group = i / p.block;
    const std::int64_t kept = group + 1 == p.groups() ? p.last_kept : p.kept;
    for (std::int64_t c = 0; c < kept; ++c) {
      out(i, group * p.kept + c) = static_cast<double>(p.value[i * p.kept + c]);
    }
  }
  return out;
}

inline MatrixF64 transposed(const MatrixF64& a) {
  MatrixF64 out(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) out(j, i) = a(i, j);
  }
  return out;
}

inline MatrixF64 product(const MatrixF64& a, const MatrixF64& b) {
  MatrixF64 out(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k) {
      for (std::int64_t j = 0; j < b.cols; ++j) out(i, j) += a(i, k) * b(k, j);
    }
  }
  return out;
}

inline MatrixF64 reference_core(const MatrixF64& g, const MatrixF64& p, const MatrixF64& q) {
  return product(product(transposed(p), g), q);
}

inline MatrixF64 reference_expanded(const MatrixF64& d, const MatrixF64& p, const MatrixF64& q) {
  return product(product(p, d), transposed(q));
}

inline BiasNorm reference_bias(const MatrixF64& g, const MatrixF64& p, const MatrixF64& q) {
  const MatrixF64 seen = reference_expanded(reference_core(g, p, q), p, q);
  BiasNorm out;
  for (std::size_t i = 0; i < g.v.size(); ++i) {
    out.bias_sq += (seen.v[i] - g.v[i]) * (seen.v[i] - g.v[i]);
    out.grad_sq += g.v[i] * g.v[i];
  }
  return out;
}

// A rows x cols matrix inside a larger, poisoned array: stride > cols, first element misaligned.
template <typename T>
struct PaddedMatrix {
  std::int64_t rows, cols, stride;
  std::vector<T> v;

  static constexpr std::int64_t kOffset = 1;
  static T poison() { return from_float<T>(-12345.0F); }

  explicit PaddedMatrix(const BasicMatrix<T>& m, std::int64_t padding = 3)
      : rows(m.rows),
        cols(m.cols),
        stride(m.cols + padding),
        v(static_cast<std::size_t>(kOffset + m.rows * (m.cols + padding) + 1), poison()) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) at(i, j) = m(i, j);
    }
  }

  T& at(std::int64_t i, std::int64_t j) {
    return v[static_cast<std::size_t>(kOffset + i * stride + j)];
  }
  MatrixView<T> view() { return {v.data() + kOffset, rows, cols, stride}; }
  AnyMatrix any() {
    if constexpr (std::is_same_v<T, std::uint16_t>) {
      return {};
    } else {
      return {v.data() + kOffset, rows, cols, stride, dtype_of<T>};
    }
  }
  BasicMatrix<T> matrix() {
    BasicMatrix<T> out(rows, cols);
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) out(i, j) = at(i, j);
    }
    return out;
  }
  // True if nothing outside the matrix was written.
  bool padding_intact() {
    PaddedMatrix fresh(matrix(), stride - cols);
    return fresh.v == v;
  }
};

template <typename T>
AnyMatrix any_matrix(BasicMatrix<T>& m) {
  return {m.v.data(), m.rows, m.cols, m.cols, dtype_of<T>};
}

}  // namespace sluiceway::test
