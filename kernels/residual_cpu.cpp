#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/residual_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cmath>

#include "kernels/base/check.h"
#include "kernels/projector_shapes.h"
#include "kernels/residual.h"
#include "kernels/row_ops-inl.h"
#include "kernels/squares-inl.h"
#include "kernels/weight_update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// f(i, rows, j, cols) for tiles of kPieceRows by kTileCols: sums of columns and roots stay in the
// first-level cache, and as many rows are read at once as memory serves well.
template <class F>
HWY_INLINE void for_tiles(const AnyMatrix& r, const F& f) {
  for (std::int64_t i = 0; i < r.rows; i += kPieceRows) {
    const std::int64_t rows = std::min(kPieceRows, r.rows - i);
    for (std::int64_t j = 0; j < r.cols; j += kTileCols) {
      const std::int64_t cols = std::min(kTileCols, r.cols - j);
      prefetch_piece(r, i, rows, j, cols);
      f(i, rows, j, cols);
    }
  }
}

// Hands r to an operation row by row of each tile.
//
//   op.touch(i, rows, j, cols)  this tile comes next
//   op.take(x, i, j, count)     x[0 .. count) is r[i][j .. j + count)
template <class Op>
HWY_INLINE void for_pieces(const AnyMatrix& r, Op& op) {
  with_type(r, [&](auto view) HWY_ATTR {
    for_tiles(r,
              [&](std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t cols) HWY_ATTR {
                op.touch(i, rows, j, cols);
                for (std::int64_t x = i; x < i + rows; ++x) op.take(view.row(x) + j, x, j, cols);
              });
  });
}

// x / (a b + eps) for a row's root `a` and the roots `b` of its columns.
class Normalizer {
 public:
  using V = hn::Vec<RowTag>;

  Normalizer(const FactoredRoots& roots, std::int64_t i, std::int64_t j)
      : row_(roots.row.data()[i]), col_(roots.col.data() + j), eps_(roots.eps) {}
  template <typename T>
  HWY_INLINE V vector(const T* x, std::int64_t j) const {
    const RowTag d;
    const V root = hn::MulAdd(hn::Set(d, row_), hn::LoadU(d, col_ + j), hn::Set(d, eps_));
    return hn::Div(load_f32(d, x + j), root);
  }
  template <typename T>
  float one(const T* x, std::int64_t j) const {
    return to_float(x[j]) / (row_ * col_[j] + eps_);
  }

 private:
  const float row_;
  const float* const col_;
  const float eps_;
};

class RmsOp {
 public:
  explicit RmsOp(const FactoredRoots& roots) : roots_(roots) {}
  void touch(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {}
  template <typename T>
  HWY_INLINE void take(const T* x, std::int64_t i, std::int64_t j, std::int64_t count) {
    const RowTag d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const Normalizer u(roots_, i, j);
    auto even = hn::Zero(d), odd = hn::Zero(d);
    std::int64_t k = 0;
    for (; k + 2 * lanes <= count; k += 2 * lanes) {
      const auto a = u.vector(x, k), b = u.vector(x, k + lanes);
      even = hn::MulAdd(a, a, even);
      odd = hn::MulAdd(b, b, odd);
    }
    float tail = 0;
    for (; k < count; ++k) tail += u.one(x, k) * u.one(x, k);
    sum_ += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) + tail);
  }
  double sum() const { return sum_; }

 private:
  const FactoredRoots roots_;
  double sum_ = 0;
};

struct Normalized {  // U = R / roots
  const FactoredRoots roots;
  Normalizer at(std::int64_t i, std::int64_t j) const { return {roots, i, j}; }
};

struct Signs {  // U = sign(R); 0 stays 0 and a NaN a NaN.
  Signs at(std::int64_t, std::int64_t) const { return *this; }
  template <typename T>
  HWY_INLINE hn::Vec<RowTag> vector(const T* x, std::int64_t j) const {
    const RowTag d;
    const auto v = load_f32(d, x + j);
    const auto has_sign = hn::Gt(hn::Abs(v), hn::Zero(d));
    return hn::IfThenElse(has_sign, hn::CopySign(hn::Set(d, 1.0F), v), v);
  }
  template <typename T>
  float one(const T* x, std::int64_t j) const {
    const float v = to_float(x[j]);
    return v > 0 ? 1.0F : v < 0 ? -1.0F : v;
  }
};

// W <- decay W + alpha U
template <class Direction>
class UpdateOp {
 public:
  UpdateOp(const AnyMatrix& w, MatrixView<std::uint16_t> low, const Direction& direction,
           const WeightUpdate& update)
      : sink_(w, low, update), direction_(direction) {}
  HWY_INLINE void touch(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    sink_.touch(i, rows, j, cols);
  }
  template <typename T>
  HWY_INLINE void take(const T* x, std::int64_t i, std::int64_t j, std::int64_t count) {
    const RowTag d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    const auto u = direction_.at(i, j);
    std::int64_t k = 0;
    for (; k + lanes <= count; k += lanes) hn::StoreU(u.vector(x, k), d, piece_ + k);
    for (; k < count; ++k) piece_[k] = u.one(x, k);
    sink_.take(i, j, piece_, count);
  }

 private:
  UpdateSink sink_;
  const Direction direction_;
  HWY_ALIGN float piece_[kTileCols];
};

void means(const AnyMatrix& r, std::span<float> rows, std::span<float> cols, float scale) {
  SquareSums sums(rows, cols, scale);
  with_type(r, [&](auto view) HWY_ATTR {
    for_tiles(r, [&](std::int64_t i, std::int64_t height, std::int64_t j, std::int64_t width)
                     HWY_ATTR { sums.add(view, i, height, j, width); });
  });
  sums.divide();
}

double rms(const AnyMatrix& r, const FactoredRoots& roots) {
  RmsOp op(roots);
  for_pieces(r, op);
  return std::sqrt(op.sum() / static_cast<double>(r.rows * r.cols));
}

void apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
           const FactoredRoots& roots, const WeightUpdate& update) {
  UpdateOp<Normalized> op(w, low, {roots}, update);
  for_pieces(r, op);
}

void sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
          const WeightUpdate& update) {
  UpdateOp<Signs> op(w, low, {}, update);
  for_pieces(r, op);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
HWY_EXPORT(means);
HWY_EXPORT(rms);
HWY_EXPORT(apply);
HWY_EXPORT(sign);

namespace cpu {

void mean_squares(const AnyMatrix& r, std::span<float> rows, std::span<float> cols, float scale) {
  check_means("mean_squares", rows, cols, r);
  HWY_DYNAMIC_DISPATCH(means)(r, rows, cols, scale);
}

double residual_rms(const AnyMatrix& r, const FactoredRoots& roots) {
  check_roots("residual_rms", roots, r.rows, r.cols);
  if (r.rows * r.cols == 0) return 0;
  return HWY_DYNAMIC_DISPATCH(rms)(r, roots);
}

void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                    const FactoredRoots& roots, const WeightUpdate& update) {
  check_roots("residual_apply", roots, r.rows, r.cols);
  check_weight("residual_apply", w, low, update, r.rows, r.cols);
  HWY_DYNAMIC_DISPATCH(apply)(w, low, r, roots, update);
}

void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                   const WeightUpdate& update) {
  check_weight("residual_sign", w, low, update, r.rows, r.cols);
  HWY_DYNAMIC_DISPATCH(sign)(w, low, r, update);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
