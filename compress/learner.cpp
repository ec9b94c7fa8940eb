#include "compress/learner.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/cpu/Utils.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "compress/host_only.h"
#include "compress/learner_objective.h"
#include "kernels/base/check.h"

namespace sluiceway {
namespace {

at::Tensor as_f32_tensor(const AnyMatrix& g) {
  const at::ScalarType type = g.dtype == DType::kF32   ? at::kFloat
                              : g.dtype == DType::kF16 ? at::kHalf
                                                       : at::kBFloat16;
  return at::from_blob(g.data, {g.rows, g.cols}, {g.stride, 1}, at::TensorOptions().dtype(type))
      .to(at::kFloat);
}

SparsePattern pattern_of(const LearnableRows& x) {
  // from_blob takes a mutable pointer; the copy in another type is what is kept.
  const at::Tensor index = at::from_blob(const_cast<std::int32_t*>(x.index), {x.rows, x.nnz},
                                         at::TensorOptions().dtype(at::kInt));
  return {index.to(at::kLong), x.cols};
}

at::Tensor values_of(const LearnableRows& x) {
  return at::from_blob(x.value.data(), {x.rows, x.nnz}, at::TensorOptions().dtype(at::kFloat));
}

void check_half(const char* name, const LearnableRows& x, std::int64_t rows, const AnyMatrix& g) {
  SLUICEWAY_CHECK(x.rows == rows && std::ssize(x.value) == x.rows * x.nnz, "learn: ", name, " is ",
                  x.rows, "x", x.cols, " with ", x.value.size(), " values, expected ", rows,
                  " rows of ", x.nnz, " for a gradient of ", g.rows, "x", g.cols);
}

// Adam on one tensor, eps outside the square root.
class Adam {
 public:
  Adam(at::Tensor value, const LearnOptions& options)
      : value_(std::move(value)),
        m_(at::zeros_like(value_)),
        v_(at::zeros_like(value_)),
        options_(options) {}

  void step(const at::Tensor& grad, int t) {
    m_.mul_(options_.beta1).add_(grad, 1 - options_.beta1);
    v_.mul_(options_.beta2).addcmul_(grad, grad, 1 - options_.beta2);
    const double m_scale = 1 / (1 - std::pow(options_.beta1, t));
    const double v_scale = 1 / (1 - std::pow(options_.beta2, t));
    const at::Tensor root = (v_ * v_scale).sqrt_().add_(options_.eps);
    value_.addcdiv_(m_, root, -options_.learning_rate * m_scale);
  }

  const at::Tensor& value() const { return value_; }

 private:
  at::Tensor value_, m_, v_;
  LearnOptions options_;
};

at::Tensor as_tensor(MatrixView<float> x) {
  return at::from_blob(x.data, {x.rows, x.cols}, {x.stride, 1},
                       at::TensorOptions().dtype(at::kFloat));
}

at::Tensor orthonormal(const at::Tensor& x) { return std::get<0>(at::linalg_qr(x)); }

// A basis of the range of x that products may follow without losing its smaller directions: the
// unit lower triangle of an LU decomposition, which takes a third of a QR's time.
at::Tensor well_conditioned(const at::Tensor& x) {
  const auto [lu, pivots, unused] = at::linalg_lu_factor_ex(x);
  at::Tensor row = at::arange(x.size(0), at::kLong);
  auto* const rows = row.mutable_data_ptr<std::int64_t>();
  const auto* const swapped = pivots.const_data_ptr<std::int32_t>();  // Counted from 1.
  for (std::int64_t i = 0; i < pivots.numel(); ++i) std::swap(rows[i], rows[swapped[i] - 1]);
  at::Tensor lower = lu.tril_(-1);
  lower.diagonal().fill_(1);
  return at::empty_like(x, at::MemoryFormat::Contiguous).index_copy_(0, row, lower);
}

bool has(const char* instructions) {
  const auto all = at::cpu::get_cpu_capabilities();
  const auto found = all.find(instructions);
  return found != all.end() && found->second.isBool() && found->second.toBool();
}

// What a gradient is multiplied as: bf16 where the processor is faster at it.
at::Tensor as_factor(const at::Tensor& x) {
  static const bool fast = has("avx512_bf16") || has("amx_bf16");
  return fast ? x.to(at::kBFloat16) : x;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& x) {
  return a.matmul(x.to(a.scalar_type())).to(at::kFloat);
}

// Hooks inherit an autocast that surrounds backward(); learning is done in f32.
class WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

class TorchLearner final : public ProjectorLearner {
 public:
  void leading_directions(const AnyMatrix& g, MatrixView<float> p, MatrixView<float> q,
                          std::uint64_t seed, StreamRef stream) override {
    require_host_stream(stream, "learn", "libtorch runs on the processor alone");
    SLUICEWAY_CHECK(p.cols == 0 || (p.rows == g.rows && p.cols <= std::min(g.rows, g.cols)),
                    "learn: P is ", p.rows, "x", p.cols, ", expected ", g.rows,
                    " rows and at most ", std::min(g.rows, g.cols), " columns");
    SLUICEWAY_CHECK(q.cols == 0 || (q.rows == g.cols && q.cols <= std::min(g.rows, g.cols)),
                    "learn: Q is ", q.rows, "x", q.cols, ", expected ", g.cols,
                    " rows and at most ", std::min(g.rows, g.cols), " columns");
    const at::NoGradGuard no_grad;
    const WithoutAutocast full_precision;
    const at::Tensor full = as_f32_tensor(g);
    // Powers of a gradient of 1e-12 would be lost in f32.
    const at::Tensor largest = full.abs().max();
    const at::Tensor a = as_factor(largest.item<float>() > 0 ? full / largest : full);
    const std::int64_t k = std::min({g.rows, g.cols, std::max(p.cols, q.cols) + kExtraDirections});
    at::Generator random = at::detail::createCPUGenerator(seed);
    at::Tensor range = product(a, at::randn({g.cols, k}, random, at::kFloat));
    for (int power = 0; power < kPowerIterations; ++power) {
      range = product(a, well_conditioned(product(a.t(), well_conditioned(range))));
    }
    const at::Tensor left = orthonormal(range);
    // a is about left rest^T. Eigenvectors of rest^T rest, which are sorted ascending, order both.
    const at::Tensor rest = product(a.t(), left);
    const at::Tensor order = std::get<1>(at::linalg_eigh(rest.t().matmul(rest))).flip({1});
    if (p.cols > 0) as_tensor(p).copy_(left.matmul(order.narrow(1, 0, p.cols)));
    if (q.cols > 0) as_tensor(q).copy_(orthonormal(rest.matmul(order.narrow(1, 0, q.cols))));
  }

  LearnOutcome learn(const AnyMatrix& g, const LearnableRows& p, const LearnableRows& q,
                     const LearnOptions& options, StreamRef stream) override {
    require_host_stream(stream, "learn", "libtorch runs on the processor alone");
    check_half("P", p, g.rows, g);
    check_half("Q", q, g.cols, g);
    const at::NoGradGuard no_grad;
    const WithoutAutocast full_precision;
    const BiasObjective objective(as_f32_tensor(g), pattern_of(p), pattern_of(q), options.beta);
    Adam p_adam(values_of(p).clone(), options), q_adam(values_of(q).clone(), options);
    at::Tensor best_p, best_q;
    LearnOutcome outcome;
    for (int t = 1;; ++t) {
      const BiasObjective::Evaluation now = objective.evaluate(p_adam.value(), q_adam.value());
      if (t == 1) outcome.bias_before = now.bias;
      if (t == 1 || now.bias < outcome.bias_after) {
        outcome.bias_after = now.bias;
        best_p = p_adam.value().clone();
        best_q = q_adam.value().clone();
      }
      if (now.bias <= options.threshold || t > options.max_steps || !std::isfinite(now.bias)) break;
      p_adam.step(now.dp, t);
      q_adam.step(now.dq, t);
      outcome.steps = t;
    }
    values_of(p).copy_(best_p);
    values_of(q).copy_(best_q);
    return outcome;
  }
};

}  // namespace

std::unique_ptr<ProjectorLearner> make_torch_learner() { return std::make_unique<TorchLearner>(); }

}  // namespace sluiceway
