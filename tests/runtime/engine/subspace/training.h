// Three weights of odd shapes, their engine, and AdamW in double on the same gradients.
#pragma once

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/subspace/subspace_engine.h"
#include "tests/support/matrix.h"
#include "tests/support/rng.h"

namespace sluiceway::test {

inline constexpr double kLr = 1e-2, kBeta1 = 0.9, kBeta2 = 0.99, kEps = 1e-8, kDecay = 0.1;
inline const WeightHyper kHyper{kLr, kBeta1, kBeta2, kEps, kDecay, 0};

class Training {
 public:
  Training(SubspaceOptions options, const std::string& codec, WireFormat wire = WireFormat::kF32,
           CoreTier tier = CoreTier::kHost, ResidualKind residual = ResidualKind::kNone,
           SecondMoment second_moment = SecondMoment::kFull,
           std::unique_ptr<ProjectorLearner> learner = nullptr) {
    std::vector<WeightSpec> specs;
    for (const auto& [rows, cols] : {std::pair{13, 29}, {31, 7}, {17, 17}}) {
      weights.push_back(rng_.matrix(rows, cols));
      m_.emplace_back(rows, cols);
      v_.emplace_back(rows, cols);
      expected.push_back(as_f64(weights.back()));
      WeightSpec spec;
      spec.name = "w" + std::to_string(specs.size());
      spec.rows = rows;
      spec.cols = cols;
      spec.codec.name = codec;
      spec.wire = wire;
      spec.tier = tier;
      spec.residual = residual;
      spec.second_moment = second_moment;
      specs.push_back(spec);
    }
    options.lanes.limits.fill(Budget::kUnlimited);
    engine = std::make_unique<SubspaceEngine>(options, specs, std::move(learner));
  }

  std::vector<Matrix> gradients() {
    std::vector<Matrix> result;
    for (const Matrix& w : weights) result.push_back(rng_.matrix(w.rows, w.cols, 0.3));
    return result;
  }

  static AnyMatrix any(Matrix& matrix) {
    return {matrix.v.data(), matrix.rows, matrix.cols, matrix.cols, DType::kF32};
  }

  void backward(std::vector<Matrix>& g) { backward(g, g); }
  void backward(std::vector<Matrix>& g, std::vector<Matrix>& total) {
    engine->prepare(hyper(), views());
    for (std::size_t i = g.size(); i-- > 0;) {
      engine->add_gradient(static_cast<int>(i), any(g[i]), any(total[i]), StreamRef::host());
    }
  }

  StepOutcome step(float factor = 1, float unscale = 1, std::span<const float> own_factors = {}) {
    const std::vector<WeightHyper> hypers = hyper();
    const std::vector<AnyMatrix> now = views();
    return engine->step({hypers, now, factor, 0, unscale, own_factors});
  }

  std::vector<WeightHyper> hyper() const {
    return std::vector<WeightHyper>(weights.size(), kHyper);
  }
  std::vector<AnyMatrix> views() {
    std::vector<AnyMatrix> out;
    for (Matrix& w : weights) out.push_back(any(w));
    return out;
  }

  void expect_step(const std::vector<Matrix>& sum, double factor,
                   std::span<const float> own_factors = {}) {
    ++t_;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double own = own_factors.empty() ? 1 : own_factors[i];
      for (std::size_t j = 0; j < sum[i].v.size(); ++j) {
        const double g = factor * own * to_f64(sum[i].v[j]);
        m_[i].v[j] += (1 - kBeta1) * (g - m_[i].v[j]);
        v_[i].v[j] = kBeta2 * v_[i].v[j] + (1 - kBeta2) * g * g;
        const double m_hat = m_[i].v[j] / (1 - std::pow(kBeta1, t_));
        const double v_hat = v_[i].v[j] / (1 - std::pow(kBeta2, t_));
        double& w = expected[i].v[j];
        w = (1 - kLr * kDecay) * w - kLr * m_hat / (std::sqrt(v_hat) + kEps);
      }
    }
  }

  static double norm(const std::vector<Matrix>& g) {
    double squares = 0;
    for (const Matrix& matrix : g) {
      for (const float x : matrix.v) squares += to_f64(x) * to_f64(x);
    }
    return std::sqrt(squares);
  }

  std::vector<Matrix> weights;
  std::vector<MatrixF64> expected;
  std::unique_ptr<SubspaceEngine> engine;

 private:
  Rng rng_{20260917};
  std::vector<MatrixF64> m_, v_;
  int t_ = 0;
};

inline SubspaceOptions options_with(Order order, NormChoice norm, double max_norm = 0) {
  SubspaceOptions options(DeviceId::host());
  options.lanes.order = order;
  options.gate.norm = norm;
  options.gate.max_norm = max_norm;
  options.host_threads = 2;
  return options;
}

}  // namespace sluiceway::test
