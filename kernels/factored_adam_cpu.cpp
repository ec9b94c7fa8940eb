#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/factored_adam_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include <cmath>

#include "kernels/adam-inl.h"
#include "kernels/adam_checks.h"
#include "kernels/factored_adam.h"

#ifndef SLUICEWAY_KERNELS_FACTORED_ADAM_PASS_
#define SLUICEWAY_KERNELS_FACTORED_ADAM_PASS_
namespace sluiceway {

template <typename T>
struct FactoredAdamPass {  // Shapes are checked already.
  MatrixView<const T> g;
  AdamCoefficients coefficients;
  MatrixView<const float> m_in;
  MatrixView<float> m_out;
  FactoredRoots roots;
  MatrixView<T> d;
};

}  // namespace sluiceway
#endif  // SLUICEWAY_KERNELS_FACTORED_ADAM_PASS_

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

template <typename T>
struct FactoredRow {
  const T* g;
  const float* m_in;
  float* m_out;
  T* d;
  float root;
  const float* roots;

  FactoredRow(const FactoredAdamPass<T>& pass, std::int64_t i)
      : g(pass.g.row(i)),
        m_in(pass.m_in.row(i)),
        m_out(pass.m_out.row(i)),
        d(pass.d.row(i)),
        root(pass.roots.row[static_cast<std::size_t>(i)]),
        roots(pass.roots.col.data()) {}

  // Advances m; returns u, which is d too as long as nobody clips it.
  template <class D, class Lanes>
  HWY_INLINE hn::Vec<D> advance(D tag, Lanes lanes, const AdamFormula<D>& formula,
                                std::int64_t j) const {
    auto m = lanes.load(tag, m_in + j);
    formula.advance_first(lanes.load(tag, g + j), m);
    lanes.store(tag, m, m_out + j);
    const auto u = direction(tag, lanes, formula, m, j);
    lanes.store(tag, u, d + j);
    return u;
  }
  template <class D, class Lanes>
  HWY_INLINE void clip(D tag, Lanes lanes, const AdamFormula<D>& formula, hn::Vec<D> clip,
                       std::int64_t j) const {
    const auto u = direction(tag, lanes, formula, lanes.load(tag, m_out + j), j);
    lanes.store(tag, hn::Mul(clip, u), d + j);
  }

 private:
  template <class D, class Lanes>
  HWY_INLINE hn::Vec<D> direction(D tag, Lanes lanes, const AdamFormula<D>& formula, hn::Vec<D> m,
                                  std::int64_t j) const {
    const auto denominator =
        hn::MulAdd(hn::Set(tag, root), lanes.load(tag, roots + j), formula.eps);
    return hn::Div(formula.corrected_first(m), denominator);
  }
};

// f(lanes, j, count) for the elements of a row, a vector of them at a time.
template <class D, class F>
HWY_INLINE void for_vectors(D tag, std::int64_t cols, const F& f) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(tag));
  std::int64_t j = 0;
  for (; j + lanes <= cols; j += lanes) f(WholeVector(), j, lanes);
  if (j < cols) f(FirstLanes{static_cast<std::size_t>(cols - j)}, j, cols - j);
}

template <typename T>
HWY_INLINE void sweep_rows(const FactoredAdamPass<T>& pass) {
  using D = hn::ScalableTag<float>;
  const D tag;
  const AdamFormula<D> formula(tag, pass.coefficients);
  double sum = 0;
  for (std::int64_t i = 0; i < pass.g.rows; ++i) {
    const FactoredRow<T> row(pass, i);
    auto squares = hn::Zero(tag);
    for_vectors(tag, pass.g.cols, [&](auto lanes, std::int64_t j, std::int64_t count) HWY_ATTR {
      const auto u = row.advance(tag, lanes, formula, j);
      const auto known = hn::FirstN(tag, static_cast<std::size_t>(count));
      squares = hn::IfThenElse(known, hn::MulAdd(u, u, squares), squares);
    });
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(tag, squares)));
  }
  const auto elems = static_cast<double>(pass.g.rows * pass.g.cols);
  const float clip = direction_clip(elems == 0 ? 0 : std::sqrt(sum / elems));
  if (clip == 1) return;
  for (std::int64_t i = 0; i < pass.g.rows; ++i) {
    const FactoredRow<T> row(pass, i);
    for_vectors(tag, pass.g.cols, [&](auto lanes, std::int64_t j, std::int64_t) HWY_ATTR {
      row.clip(tag, lanes, formula, hn::Set(tag, clip), j);
    });
  }
}

void factored_f32(const FactoredAdamPass<float>& pass) { sweep_rows(pass); }
void factored_bf16(const FactoredAdamPass<bf16>& pass) { sweep_rows(pass); }

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {

HWY_EXPORT(factored_f32);
HWY_EXPORT(factored_bf16);
void dispatch(const FactoredAdamPass<float>& pass) { HWY_DYNAMIC_DISPATCH(factored_f32)(pass); }
void dispatch(const FactoredAdamPass<bf16>& pass) { HWY_DYNAMIC_DISPATCH(factored_bf16)(pass); }

}  // namespace

namespace cpu {

template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d) {
  check_factored_adam(g, m_in, m_out, roots, hyper, d);
  AdamHyper with_eps = hyper;
  with_eps.eps = static_cast<double>(roots.eps);
  dispatch(
      FactoredAdamPass<T>{g, AdamCoefficients::of(grad_scale, with_eps), m_in, m_out, roots, d});
}

template void factored_adam_direction(MatrixView<const float>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<float>);
template void factored_adam_direction(MatrixView<const bf16>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<bf16>);

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
