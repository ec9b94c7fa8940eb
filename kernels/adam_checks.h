// Argument checks of adam.h and factored_adam.h. The CPU and the CUDA code make them first.
//
// Errors: InvalidArgument, naming the function and both lengths or shapes, or the step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/adam.h"
#include "kernels/base/check.h"
#include "kernels/base/view.h"
#include "kernels/factored_roots.h"

namespace sluiceway {

inline void check_step(const char* function, const AdamHyper& hyper) {
  SLUICEWAY_CHECK(hyper.step >= 1, function, ": step is ", hyper.step,
                  ", expected 1 or more; the first step is 1");
}

inline void check_as_long_as_g(const char* function, const char* name, std::size_t actual,
                               std::size_t n) {
  SLUICEWAY_CHECK(actual == n, function, ": ", name, " has ", actual, " elements, expected ", n,
                  ", the length of g");
}

inline void check_moments(const char* function, const AdamMoments& moments, std::size_t n) {
  check_as_long_as_g(function, "m_in", moments.m_in.size(), n);
  check_as_long_as_g(function, "v_in", moments.v_in.size(), n);
  check_as_long_as_g(function, "m_out", moments.m_out.size(), n);
  check_as_long_as_g(function, "v_out", moments.v_out.size(), n);
}

inline void check_adam_weight(const MasterWeight& w, std::size_t n) {
  check_as_long_as_g("adam_step", "w.in", w.in.size(), n);
  check_as_long_as_g("adam_step", "w.out", w.out.size(), n);
}
template <typename T>
void check_adam_weight(const MasterAndCopy<T>& w, std::size_t n) {
  check_adam_weight(MasterWeight{w.in, w.out}, n);
  check_as_long_as_g("adam_step", "w.copy", w.copy.size(), n);
}
inline void check_adam_weight(const StochasticWeight& w, std::size_t n) {
  check_as_long_as_g("adam_step", "w.in", w.in.size(), n);
  check_as_long_as_g("adam_step", "w.out", w.out.size(), n);
}
inline void check_adam_weight(const HiLoWeight& w, std::size_t n) {
  check_as_long_as_g("adam_step", "w.hi_in", w.hi_in.size(), n);
  check_as_long_as_g("adam_step", "w.low_in", w.low_in.size(), n);
  check_as_long_as_g("adam_step", "w.hi_out", w.hi_out.size(), n);
  check_as_long_as_g("adam_step", "w.low_out", w.low_out.size(), n);
}

template <typename G, typename D>
void check_adam_direction(std::span<const G> g, const AdamMoments& moments, const AdamHyper& hyper,
                          std::span<D> d) {
  check_step("adam_direction", hyper);
  check_moments("adam_direction", moments, g.size());
  check_as_long_as_g("adam_direction", "d", d.size(), g.size());
}

template <typename G, typename Weight>
void check_adam_step(std::span<const G> g, const AdamMoments& moments, const AdamHyper& hyper,
                     const Weight& w) {
  check_step("adam_step", hyper);
  check_moments("adam_step", moments, g.size());
  check_adam_weight(w, g.size());
}

template <typename T>
void check_factored_adam(MatrixView<const T> g, MatrixView<const float> m_in,
                         MatrixView<float> m_out, const FactoredRoots& roots,
                         const AdamHyper& hyper, MatrixView<T> d) {
  static constexpr const char* kName = "factored_adam_direction";
  const auto check_as_g = [&g](const char* name, const auto& x) {
    SLUICEWAY_CHECK(x.rows == g.rows && x.cols == g.cols, kName, ": ", name, " is ", x.rows, "x",
                    x.cols, ", expected ", g.rows, "x", g.cols, ", the shape of g");
  };
  check_step(kName, hyper);
  check_as_g("m_in", m_in);
  check_as_g("m_out", m_out);
  check_as_g("d", d);
  check_roots(kName, roots, g.rows, g.cols);
}

}  // namespace sluiceway
