// The function that learning minimises, and its gradient, in any floating type.
//
//   f(P, Q) = |R|_F / |G|_F + beta (|P|_F + |Q|_F),     R = P P^T G Q Q^T - G
//   d(|R|^2 / 2)/dP = R Q (Q^T G^T P) + G Q (Q^T R^T P)       masked to the pattern of P
//   d(|R|^2 / 2)/dQ = R^T P (P^T G Q) + G^T P (P^T R Q)       masked to the pattern of Q
//
// R is never formed. With A = P^T G Q, the Gram matrices K = P^T P and L = Q^T Q, and C = K A L:
//
//   |R|^2 = <C, A> - 2 <A, A> + |G|^2     R Q = P (A L) - G Q     R^T P = Q (K A)^T - G^T P
//   P^T R Q = C - A
//
// Everything is computed on the device of the arguments; an evaluation copies four numbers to the
// host.
//
// Source:   docs/algorithm.md section 2.
// Numerics: in the type of G, with inner products summed in double: in f32, a relative bias below
//           about 1e-3 is rounding error.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace sluiceway {

// The fixed positions of one sparse projector, arranged for products from either side.
class SparsePattern {
 public:
  SparsePattern(const at::Tensor& index, std::int64_t cols);  // i64[rows, nnz]

  std::int64_t rows() const { return index_.size(0); }
  std::int64_t nnz() const { return index_.size(1); }

  // `value` is [rows, nnz] in the type of `x`.
  at::Tensor times(const at::Tensor& value, const at::Tensor& x) const;             // P x
  at::Tensor transposed_times(const at::Tensor& value, const at::Tensor& x) const;  // P^T x
  at::Tensor gram(const at::Tensor& value) const;                                   // P^T P, dense

  // Entries of a b^T at the nonzeros, [rows, nnz]; a is rows x k, b is cols x k.
  at::Tensor sampled_product(const at::Tensor& a, const at::Tensor& b) const;

 private:
  std::int64_t cols_;
  at::Tensor index_, row_start_, row_of_entry_;  // Arrays by row.
  // Arrays by column; by_column_ orders the values.
  at::Tensor by_column_, column_row_, column_start_;
  at::Tensor pair_;  // Flat position in the Gram matrix, i64[rows, nnz, nnz].
};

class BiasObjective {
 public:
  // `g` is dense, f32 or f64; its transpose is copied.
  BiasObjective(const at::Tensor& g, SparsePattern p, SparsePattern q, double beta);

  struct Evaluation {
    double bias = 0;       // |R|_F / |G|_F
    double objective = 0;  // f
    at::Tensor dp, dq;     // Gradient of f, shaped like the values.
  };
  Evaluation evaluate(const at::Tensor& p_value, const at::Tensor& q_value) const;

 private:
  at::Tensor g_, g_transposed_;
  SparsePattern p_, q_;
  double beta_;
  double grad_sq_;
};

}  // namespace sluiceway
