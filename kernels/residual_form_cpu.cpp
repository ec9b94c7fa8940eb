#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/residual_form_cpu.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h comes first: it includes this file once for each instruction set.
#include <hwy/highway.h>

#include "kernels/decompress-inl.h"
#include "kernels/projector_checks.h"
#include "kernels/residual_form.h"
#include "kernels/squares-inl.h"
#include "kernels/weight_update-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluiceway {
namespace HWY_NAMESPACE {

// Subtracts each piece from g, then reads it once more from the first-level cache.
class FormSink {
 public:
  FormSink(const AnyMatrix& g, std::span<float> rows, std::span<float> cols)
      : g_(g), update_(g, {}, {.alpha = -1.0F}), sums_(rows, cols, 1.0F) {}

  HWY_INLINE static constexpr bool wants(std::int64_t, std::int64_t, std::int64_t, std::int64_t) {
    return true;
  }
  HWY_INLINE void touch(std::int64_t i, std::int64_t rows, std::int64_t j,
                        std::int64_t cols) const {
    update_.touch(i, rows, j, cols);
  }
  HWY_INLINE void take(std::int64_t i, std::int64_t j, const float* x, std::int64_t count) {
    update_.take(i, j, x, count);
  }
  HWY_INLINE void done(std::int64_t i, std::int64_t rows, std::int64_t j, std::int64_t cols) {
    with_type(g_, [&](auto view) HWY_ATTR { sums_.add(view, i, rows, j, cols); });
  }
  void finish() { sums_.divide(); }

 private:
  const AnyMatrix g_;
  UpdateSink update_;
  SquareSums sums_;
};

template <class Rows>
HWY_INLINE void form(const AnyMatrix& g, MatrixView<float> s, const Rows& p, const Rows& q,
                     std::span<float> rows, std::span<float> cols, std::span<float> scratch) {
  FormSink sink(g, rows, cols);
  expand(AnyMatrix{s.data, s.rows, s.cols, s.stride, DType::kF32}, p, q, scratch, sink);
  sink.finish();
}

void form_sparse(const AnyMatrix& g, MatrixView<float> s, const SparseRows& p, const SparseRows& q,
                 std::span<float> rows, std::span<float> cols, std::span<float> scratch) {
  form(g, s, p, q, rows, cols, scratch);
}

void form_blocks(const AnyMatrix& g, MatrixView<float> s, const BlockRows& p, const BlockRows& q,
                 std::span<float> rows, std::span<float> cols, std::span<float> scratch) {
  form(g, s, p, q, rows, cols, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace sluiceway
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace sluiceway {

HWY_EXPORT(form_sparse);
HWY_EXPORT(form_blocks);

namespace cpu {

void residual_form(const AnyMatrix& g, MatrixView<float> s, const SparseRows& p,
                   const SparseRows& q, std::span<float> rows, std::span<float> cols,
                   std::span<float> scratch) {
  check_form(g, s, p, q, rows, cols, scratch);
  HWY_DYNAMIC_DISPATCH(form_sparse)(g, s, p, q, rows, cols, scratch);
}

void residual_form(const AnyMatrix& g, MatrixView<float> s, const BlockRows& p, const BlockRows& q,
                   std::span<float> rows, std::span<float> cols, std::span<float> scratch) {
  check_form(g, s, p, q, rows, cols, scratch);
  HWY_DYNAMIC_DISPATCH(form_blocks)(g, s, p, q, rows, cols, scratch);
}

}  // namespace cpu
}  // namespace sluiceway

#endif  // HWY_ONCE
