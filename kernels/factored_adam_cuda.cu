#include "kernels/adam_checks.h"
#include "kernels/cuda/adam_formula.cuh"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/factored_adam.h"

namespace sluiceway::cuda {
namespace {

// Reads g and m, writes m and d: 8 + 2 sizeof(T) bytes an element; roots come from the caches. 8
// flop. The first moment is that of adam_pass(), by the same lines.
template <typename T>
struct FactoredOp {
  AdamCoefficients c;
  MatrixView<const T> g;
  MatrixView<const float> m_in;
  MatrixView<float> m_out;
  const float *row_roots, *col_roots;
  MatrixView<T> d;

  __device__ void take(std::int64_t row, std::int64_t col, int count) const {
    float gradient[kOctet], m[kOctet], x[kOctet];
    load_values(g.row(row) + col, count, gradient);
    load_values(m_in.row(row) + col, count, m);
    load_values(col_roots + col, count, x);
    const float root = count > 0 ? __ldg(row_roots + row) : 0.0F;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      advance_first(c, gradient[k], m[k]);
      x[k] = __fdiv_rn(corrected_first(c, m[k]), fmaf(root, x[k], c.eps));
    }
    store_nearest(m_out.row(row) + col, m, count);
    store_nearest(d.row(row) + col, x, count);
  }
};

}  // namespace

template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d, StreamRef stream) {
  check_factored_adam(g, m_in, m_out, roots, hyper, d);
  AdamHyper with_eps = hyper;
  with_eps.eps = static_cast<double>(roots.eps);
  const FactoredOp<T> op{AdamCoefficients::of(grad_scale, with_eps),
                         g,
                         m_in,
                         m_out,
                         roots.row.data(),
                         roots.col.data(),
                         d};
  run_row_pass("factored_adam_direction", op, g.rows, g.cols, stream);
}

template void factored_adam_direction(MatrixView<const float>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<float>, StreamRef);
template void factored_adam_direction(MatrixView<const bf16>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<bf16>, StreamRef);

}  // namespace sluiceway::cuda
