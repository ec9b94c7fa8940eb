// Argument checks of the operations on projectors. The CPU and the CUDA code make them first.
//
// Errors: InvalidArgument, naming the function and both shapes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/view.h"
#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/compress_linear.h"
#include "kernels/decompress.h"
#include "kernels/projector_shapes.h"

namespace sluiceway {

// Checks that blocks are consistent in themselves. Sparse indices cannot be checked here.
inline void check_projectors(const char* function, const BlockRows& p, const BlockRows& q) {
  check_blocks(function, "p", p);
  check_blocks(function, "q", q);
}
template <class Q>
void check_projectors(const char*, const SparseRows&, const Q&) {}

template <class P, class Q>
void check_compress(MatrixView<float> s, const AnyMatrix& g, const P& p, const Q& q,
                    std::span<const float> scratch) {
  check_projectors("compress", p, q);
  check_shape("compress", named("g", g), p.rows, q.rows);
  check_shape("compress", named("s", s), p.cols, q.cols);
  check_scratch("compress", scratch.size(), compress_scratch_elems(p, q));
}

inline void check_compress(MatrixView<float> s, const AnyMatrix& g) {
  check_shape("compress", named("s", s), g.rows, g.cols);
  check_shape("compress", named("g", g), g.rows, g.cols);
}

template <class Rows>
void check_decompress(const AnyMatrix& w, const MatrixView<std::uint16_t>& low, const AnyMatrix& d,
                      const Rows& p, const Rows& q, const WeightUpdate& update,
                      std::span<const float> scratch) {
  check_projectors("decompress", p, q);
  check_weight("decompress", w, low, update, p.rows, q.rows);
  check_shape("decompress", named("d", d), p.cols, q.cols);
  check_scratch("decompress", scratch.size(), decompress_scratch_elems(p, q));
}

inline void check_decompress(const AnyMatrix& w, const MatrixView<std::uint16_t>& low,
                             const AnyMatrix& d, const WeightUpdate& update) {
  check_weight("decompress", w, low, update, d.rows, d.cols);
  check_shape("decompress", named("d", d), d.rows, d.cols);
}

inline void check_projector(const char* function, const BlockRows& p) {
  check_blocks(function, "p", p);
}
inline void check_projector(const char*, const SparseRows&) {}

template <class Rows>
void check_project(const AnyMatrix& w, const AnyMatrix& g, const Rows& p,
                   std::span<const float> scratch) {
  check_projector("project_rows", p);
  check_shape("project_rows", named("g", g), g.rows, p.rows);
  check_shape("project_rows", named("w", w), g.rows, p.cols);
  check_scratch("project_rows", scratch.size(), project_scratch_elems(p));
}

template <class Rows>
void check_form(const AnyMatrix& g, MatrixView<float> s, const Rows& p, const Rows& q,
                std::span<float> rows, std::span<float> cols, std::span<const float> scratch) {
  check_projectors("residual_form", p, q);
  check_shape("residual_form", named("g", g), p.rows, q.rows);
  check_shape("residual_form", named("s", s), p.cols, q.cols);
  check_means("residual_form", rows, cols, g);
  check_scratch("residual_form", scratch.size(), decompress_scratch_elems(p, q));
}

inline void check_bias(const AnyMatrix& g, const SparseRows& p, const SparseRows& q,
                       const SparseColumns& q_columns, std::span<const float> scratch) {
  check_shape("bias_norm", named("g", g), p.rows, q.rows);
  SLUICEWAY_CHECK(q_columns.rows == q.rows && q_columns.cols == q.cols, "bias_norm: q_columns is ",
                  q_columns.rows, "x", q_columns.cols, ", expected ", q.rows, "x", q.cols);
  check_scratch("bias_norm", scratch.size(), bias_norm_scratch_elems(p, q));
}

inline void check_bias(const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
                       std::span<const float> scratch) {
  check_projectors("bias_norm", p, q);
  check_shape("bias_norm", named("g", g), p.rows, q.rows);
  check_scratch("bias_norm", scratch.size(), bias_norm_scratch_elems(p, q));
}

}  // namespace sluiceway
