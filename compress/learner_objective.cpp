#include "compress/learner_objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace sluiceway {
namespace {

constexpr std::int64_t kSum = 0;  // Mode of an embedding bag.

// out[b] = sum over j in [start[b], start[b + 1]) of weight[j] x[row[j]]
at::Tensor sum_of_rows(const at::Tensor& x, const at::Tensor& row, const at::Tensor& start,
                       const at::Tensor& weight) {
  return std::get<0>(at::embedding_bag(x, row, start, /*scale_grad_by_freq=*/false, kSum,
                                       /*sparse=*/false, weight));
}

at::Tensor inner_f64(const at::Tensor& a, const at::Tensor& b) { return (a * b).sum(at::kDouble); }

// Adds elements with equal positions in one order, so that equal calls give equal bits: a GPU's
// index_add_ has no fixed order, and index_put_ sorts there.
void add_at(at::Tensor& sums, const at::Tensor& position, const at::Tensor& x) {
  if (sums.is_cpu()) {
    sums.index_add_(0, position, x);
  } else {
    sums.index_put_({position}, x, /*accumulate=*/true);
  }
}

}  // namespace

SparsePattern::SparsePattern(const at::Tensor& index, std::int64_t cols)
    : cols_(cols), index_(index.contiguous()) {
  const at::Tensor flat = index_.flatten();
  row_start_ = at::arange(0, flat.numel(), nnz(), index_.options());
  row_of_entry_ = at::arange(rows(), index_.options()).repeat_interleave(nnz());
  by_column_ = flat.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  column_row_ = at::floor_divide(by_column_, nnz());
  const at::Tensor counts = flat.bincount({}, cols_);
  column_start_ = counts.cumsum(0) - counts;
  pair_ = (index_.unsqueeze(2) * cols_ + index_.unsqueeze(1)).flatten();
}

at::Tensor SparsePattern::times(const at::Tensor& value, const at::Tensor& x) const {
  return sum_of_rows(x.contiguous(), index_.flatten(), row_start_, value.flatten());
}

at::Tensor SparsePattern::transposed_times(const at::Tensor& value, const at::Tensor& x) const {
  return sum_of_rows(x.contiguous(), column_row_, column_start_,
                     value.flatten().index_select(0, by_column_));
}

at::Tensor SparsePattern::gram(const at::Tensor& value) const {
  const at::Tensor products = (value.unsqueeze(2) * value.unsqueeze(1)).flatten();
  at::Tensor flat = at::zeros({cols_ * cols_}, value.options());
  add_at(flat, pair_, products);
  return flat.view({cols_, cols_});
}

at::Tensor SparsePattern::sampled_product(const at::Tensor& a, const at::Tensor& b) const {
  // The gradient of an embedding bag's weights is an inner product of rows for each of them.
  return at::_embedding_bag_per_sample_weights_backward(a, b, index_.flatten(), row_start_,
                                                        row_of_entry_, kSum)
      .view({rows(), nnz()});
}

BiasObjective::BiasObjective(const at::Tensor& g, SparsePattern p, SparsePattern q, double beta)
    : g_(g.contiguous()),
      g_transposed_(g.t().contiguous()),
      p_(std::move(p)),
      q_(std::move(q)),
      beta_(beta),
      grad_sq_(inner_f64(g_, g_).item<double>()) {}

BiasObjective::Evaluation BiasObjective::evaluate(const at::Tensor& p_value,
                                                  const at::Tensor& q_value) const {
  const at::Tensor gq = q_.transposed_times(q_value, g_transposed_).t().contiguous();
  const at::Tensor gtp = p_.transposed_times(p_value, g_).t().contiguous();
  const at::Tensor a = p_.transposed_times(p_value, gq);
  const at::Tensor al = at::mm(a, q_.gram(q_value));
  const at::Tensor k = p_.gram(p_value);
  const at::Tensor c = at::mm(k, al);
  const at::Tensor ka = at::mm(k, a);

  const at::Tensor ptrq = c - a;
  const at::Tensor rq = p_.times(p_value, al) - gq;
  const at::Tensor rtp = q_.times(q_value, ka.t()) - gtp;
  at::Tensor dp = p_.sampled_product(rq, a) + p_.sampled_product(gq, ptrq);
  at::Tensor dq =
      q_.sampled_product(rtp, a.t().contiguous()) + q_.sampled_product(gtp, ptrq.t().contiguous());

  // Copies all numbers at once, and last, so that a GPU already has the rest of the work.
  const at::Tensor sums = at::stack({inner_f64(c, a), inner_f64(a, a), inner_f64(p_value, p_value),
                                     inner_f64(q_value, q_value)})
                              .cpu();
  const auto* const sum = sums.const_data_ptr<double>();
  const double bias_norm = std::sqrt(std::max(sum[0] - 2 * sum[1] + grad_sq_, 0.0));
  const double p_norm = std::sqrt(sum[2]), q_norm = std::sqrt(sum[3]);
  const double grad_norm = std::sqrt(grad_sq_);
  const double per_half_square = bias_norm == 0 ? 0 : 1 / (bias_norm * grad_norm);
  dp.mul_(per_half_square).add_(p_value, p_norm == 0 ? 0 : beta_ / p_norm);
  dq.mul_(per_half_square).add_(q_value, q_norm == 0 ? 0 : beta_ / q_norm);
  const double bias = bias_norm / grad_norm;
  return {bias, bias + beta_ * (p_norm + q_norm), std::move(dp), std::move(dq)};
}

}  // namespace sluiceway
