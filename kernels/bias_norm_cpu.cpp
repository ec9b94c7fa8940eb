#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bias_norm_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/bias_norm.h"
#include "kernels/compress.h"
#include "kernels/decompress-inl.h"
#include "kernels/decompress.h"
#include "kernels/projector_checks.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// Compares pieces of P S Q^T with G and sums both squares in double.
class BiasSink {
 public:
  explicit BiasSink(const AnyMatrix& g) : g_(g) {}

  HWY_INLINE static constexpr bool wants(std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
    return true;
  }
  HWY_INLINE void done(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {}
  HWY_INLINE void touch(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    prefetch_piece(g_, i, rows, j, cols);
  }

  HWY_INLINE void take(std::int64_t i, std::int64_t j, const float* x, std::int64_t count) {
    with_type(g_, [&](auto view) HWY_ATTR { add(view.row(i) + j, x, count); });
  }

  BiasNorm result() const { return result_; }

 private:
  template <typename T>
  HWY_INLINE void add(const T* g, const float* x, std::int64_t count) {
    const hn::CappedTag<double, 4> dd;
    const hn::Rebind<float, decltype(dd)> d;
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    auto bias = hn::Zero(dd), grad = hn::Zero(dd);
    std::int64_t j = 0;
    for (; j + lanes <= count; j += lanes) {
      const auto vg = load_f32(d, g + j);
      const auto difference = hn::PromoteTo(dd, hn::Sub(hn::LoadU(d, x + j), vg));
      const auto gradient = hn::PromoteTo(dd, vg);
      bias = hn::MulAdd(difference, difference, bias);
      grad = hn::MulAdd(gradient, gradient, grad);
    }
    double tail_bias = 0, tail_grad = 0;
    for (; j < count; ++j) {
      const float vg = to_float(g[j]);
      const double difference = static_cast<double>(x[j] - vg), gradient = static_cast<double>(vg);
      tail_bias += difference * difference;
      tail_grad += gradient * gradient;
    }
    result_.bias_sq += hn::GetLane(hn::SumOfLanes(dd, bias)) + tail_bias;
    result_.grad_sq += hn::GetLane(hn::SumOfLanes(dd, grad)) + tail_grad;
  }

  const AnyMatrix g_;
  BiasNorm result_;
};

BiasNorm bias_sparse(const AnyMatrix& g, const AnyMatrix& core, const SparseRows& p,
                     const SparseRows& q, std::span<float> scratch) {
  BiasSink sink(g);
  expand(core, p, q, scratch, sink);
  return sink.result();
}

BiasNorm bias_blocks(const AnyMatrix& g, const AnyMatrix& core, const BlockRows& p,
                     const BlockRows& q, std::span<float> scratch) {
  BiasSink sink(g);
  expand(core, p, q, scratch, sink);
  return sink.result();
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {
namespace {

SparseColumns shape_of_columns(const SparseRows& q) {
  return {nullptr, nullptr, nullptr, q.rows, q.cols};
}

AnyMatrix dense(float* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols, DType::kF32};
}

}  // namespace

HWY_EXPORT(bias_sparse);
HWY_EXPORT(bias_blocks);

std::int64_t bias_norm_scratch_elems(const SparseRows& p, const SparseRows& q) {
  return kPadElems + ScratchCutter::cost(p.cols * q.cols) +
         std::max(compress_scratch_elems(p, shape_of_columns(q)), decompress_scratch_elems(p, q));
}

std::int64_t bias_norm_scratch_elems(const BlockRows& p, const BlockRows& q) {
  return kPadElems + ScratchCutter::cost(p.cols * q.cols) +
         std::max(compress_scratch_elems(p, q), decompress_scratch_elems(p, q));
}

namespace cpu {

BiasNorm bias_norm(const AnyMatrix& g, const SparseRows& p, const SparseRows& q,
                   const SparseColumns& q_columns, std::span<float> scratch) {
  check_bias(g, p, q, q_columns, scratch);
  ScratchCutter cut(scratch);
  float* const core = cut.take(p.cols * q.cols);
  compress({core, p.cols, q.cols}, 0.0F, g, p, q_columns, cut.rest());
  return HWY_DYNAMIC_DISPATCH(bias_sparse)(g, dense(core, p.cols, q.cols), p, q, cut.rest());
}

BiasNorm bias_norm(const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
                   std::span<float> scratch) {
  check_bias(g, p, q, scratch);
  ScratchCutter cut(scratch);
  float* const core = cut.take(p.cols * q.cols);
  compress({core, p.cols, q.cols}, 0.0F, g, p, q, cut.rest());
  return HWY_DYNAMIC_DISPATCH(bias_blocks)(g, dense(core, p.cols, q.cols), p, q, cut.rest());
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
