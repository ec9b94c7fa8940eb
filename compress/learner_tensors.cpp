#include "compress/learner_tensors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace sluiceway {
namespace {

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

at::Tensor orthonormal(const at::Tensor& x) { return std::get<0>(at::linalg_qr(x)); }

// The place to which an LU decomposition of x moves each row.
at::Tensor rows_by_pivot(std::int64_t count, const at::Tensor& pivots) {
  const at::Tensor here = pivots.cpu();
  at::Tensor row = at::arange(count, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  auto* const rows = row.mutable_data_ptr<std::int64_t>();
  const auto* const swapped = here.const_data_ptr<std::int32_t>();  // Counted from 1.
  for (std::int64_t i = 0; i < here.numel(); ++i) std::swap(rows[i], rows[swapped[i] - 1]);
  return row.to(pivots.device());
}

// Returns a basis of the range of x that later products can use without losing its smaller
// directions: the unit lower triangle of an LU decomposition, which takes a third of a QR's time.
at::Tensor well_conditioned(const at::Tensor& x) {
  const auto [lu, pivots, unused] = at::linalg_lu_factor_ex(x);
  at::Tensor lower = lu.tril_(-1);
  lower.diagonal().fill_(1);
  return at::empty_like(x, at::MemoryFormat::Contiguous)
      .index_copy_(0, rows_by_pivot(x.size(0), pivots), lower);
}

bool has(const char* instructions) {
  const auto all = at::cpu::get_cpu_capabilities();
  const auto found = all.find(instructions);
  return found != all.end() && found->second.isBool() && found->second.toBool();
}

// Converts x to the type of the products: bf16 if the processor is faster at it. A GPU uses f32.
at::Tensor as_factor(const at::Tensor& x) {
  static const bool fast = has("avx512_bf16") || has("amx_bf16");
  return fast && x.is_cpu() ? x.to(at::kBFloat16) : x;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& x) {
  return a.matmul(x.to(a.scalar_type())).to(at::kFloat);
}

at::Tensor normal_numbers(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                          at::Device device) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(at::kCPU);
  return at::randn({rows, cols}, random, options).to(device);
}

}  // namespace

Directions leading_directions_of(at::Tensor g, std::int64_t left_count, std::int64_t right_count,
                                 std::uint64_t seed) {
  // f32 would lose powers of a gradient of 1e-12.
  const auto [lowest, highest] = at::aminmax(g);
  const at::Tensor largest = at::maximum(highest, lowest.neg());
  if (largest.item<float>() > 0) g.div_(largest);
  const at::Tensor a = as_factor(g);
  g.reset();  // The range reuses its memory.
  const std::int64_t k = range_columns(a.size(0), a.size(1), left_count, right_count);
  at::Tensor range = product(a, normal_numbers(a.size(1), k, seed, a.device()));
  for (int power = 0; power < kPowerIterations; ++power) {
    range = product(a, well_conditioned(product(a.t(), well_conditioned(range))));
  }
  const at::Tensor left = orthonormal(range);
  // a is about left rest^T. Eigenvectors of rest^T rest, which are sorted ascending, order both.
  const at::Tensor rest = product(a.t(), left);
  const at::Tensor order = std::get<1>(at::linalg_eigh(rest.t().matmul(rest))).flip({1});
  Directions found;
  if (left_count > 0) found.left = left.matmul(order.narrow(1, 0, left_count));
  if (right_count > 0) found.right = orthonormal(rest.matmul(order.narrow(1, 0, right_count)));
  return found;
}

LearnOutcome learn_values(const at::Tensor& g, SparsePattern p, SparsePattern q,
                          const at::Tensor& p_value, const at::Tensor& q_value,
                          const LearnOptions& options) {
  const BiasObjective objective(g, std::move(p), std::move(q), options.beta);
  Adam p_adam(p_value.clone(), options), q_adam(q_value.clone(), options);
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
  p_value.copy_(best_p);
  q_value.copy_(best_q);
  return outcome;
}

}  // namespace sluiceway
