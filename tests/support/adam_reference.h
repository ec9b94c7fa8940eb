// AdamW in plain loops and double precision: the formula of kernels/adam.h, one element at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/adam.h"
#include "tests/support/matrix.h"

namespace sluiceway::test {

struct AdamReference {
  std::vector<double> m, v;
  std::vector<double> d;  // Direction of the last step.
  std::vector<double> w;

  template <typename G>
  void step(const std::vector<G>& g, double grad_scale, const AdamHyper& h) {
    const double correction1 = 1.0 - std::pow(h.beta1, static_cast<double>(h.step));
    const double correction2 = 1.0 - std::pow(h.beta2, static_cast<double>(h.step));
    d.resize(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double x = grad_scale * to_f64(g[i]);
      m[i] += (1.0 - h.beta1) * (x - m[i]);
      v[i] = h.beta2 * v[i] + (1.0 - h.beta2) * x * x;
      d[i] = (m[i] / correction1) / (std::sqrt(v[i]) / std::sqrt(correction2) + h.eps);
      if (!w.empty()) w[i] = w[i] * (1.0 - h.lr * h.weight_decay) - h.lr * d[i];
    }
  }
};

template <typename T>
std::vector<double> as_f64(const std::vector<T>& x) {
  std::vector<double> out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = to_f64(x[i]);
  return out;
}

}  // namespace sluiceway::test
