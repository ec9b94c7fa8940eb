#include "kernels/adam_checks.h"
#include "kernels/cuda/adam_formula.cuh"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/factored_adam.h"

namespace sluiceway::cuda {
namespace {

struct Roots {
  const float *row, *col;

  // u of the first moments m, whose first `count` elements count.
  __device__ void divide(const AdamCoefficients& c, const float (&m)[kOctet], std::int64_t row_at,
                         std::int64_t col_at, int count, float (&u)[kOctet]) const {
    float roots[kOctet];
    load_values(col + col_at, count, roots);
    const float root = count > 0 ? __ldg(row + row_at) : 0.0F;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      u[k] = __fdiv_rn(corrected_first(c, m[k]), fmaf(root, roots[k], c.eps));
    }
  }
};

// Reads g and m, writes m and d: 8 + 2 sizeof(T) bytes an element; roots come from the caches. 10
// flop. The first moment is that of adam_pass(), by the same lines.
template <typename T>
struct FactoredOp {
  AdamCoefficients c;
  MatrixView<const T> g;
  MatrixView<const float> m_in;
  MatrixView<float> m_out;
  Roots roots;
  MatrixView<T> d;
  double sum = 0.0;  // Of squares: eight in f32, the rest in double.

  __device__ void take(std::int64_t row, std::int64_t col, int count) {
    float gradient[kOctet], m[kOctet], u[kOctet], squares = 0.0F;
    load_values(g.row(row) + col, count, gradient);
    load_values(m_in.row(row) + col, count, m);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) advance_first(c, gradient[k], m[k]);
    roots.divide(c, m, row, col, count, u);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) squares = k < count ? fmaf(u[k], u[k], squares) : squares;
    sum += static_cast<double>(squares);
    store_nearest(m_out.row(row) + col, m, count);
    store_nearest(d.row(row) + col, u, count);
  }
};

template <typename T>
__global__ void advance_directions(FactoredOp<T> op, RowTiles tiles, unsigned* ticket,
                                   double* parts, float* clip) {
  for_row_tiles(tiles, op);
  const double mine[] = {op.sum};
  double sum[1];
  if (!sum_of_grid(mine, ticket, parts, sum)) return;
  const auto elems = static_cast<double>(tiles.rows * tiles.cols);
  *clip = direction_clip(elems == 0.0 ? 0.0 : sqrt(sum[0] / elems));
}

// Where it clips, which is rare, reads m and writes d: 4 + sizeof(T) bytes an element.
template <typename T>
struct ClipOp {
  AdamCoefficients c;
  MatrixView<float> m;
  Roots roots;
  MatrixView<T> d;
  const float* clip_at;
  float clip = 1.0F;

  __device__ void begin() { clip = *clip_at; }
  __device__ void take(std::int64_t row, std::int64_t col, int count) const {
    if (clip == 1.0F) return;
    float first[kOctet], u[kOctet];
    load_values(static_cast<const float*>(m.row(row)) + col, count, first);
    roots.divide(c, first, row, col, count, u);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) u[k] = __fmul_rn(clip, u[k]);
    store_nearest(d.row(row) + col, u, count);
  }
};

constexpr std::size_t kClipAt = kSumLimits.most * sizeof(double);  // Behind the parts.
static_assert(kClipAt + sizeof(float) <= kStreamPartsBytes);

}  // namespace

template <typename T>
void factored_adam_direction(MatrixView<const T> g, float grad_scale, MatrixView<const float> m_in,
                             MatrixView<float> m_out, const FactoredRoots& roots,
                             const AdamHyper& hyper, MatrixView<T> d, StreamRef stream) {
  check_factored_adam(g, m_in, m_out, roots, hyper, d);
  AdamHyper with_eps = hyper;
  with_eps.eps = static_cast<double>(roots.eps);
  const AdamCoefficients c = AdamCoefficients::of(grad_scale, with_eps);
  const Roots there{roots.row.data(), roots.col.data()};
  const StreamScratch scratch(stream);
  auto* const clip = reinterpret_cast<float*>(scratch.parts<std::byte>() + kClipAt);
  const RowTiles tiles = RowTiles::of(g.rows, g.cols, kSumLimits);
  launch("factored_adam_direction", Kernel<advance_directions<T>>(),
         {tiles.grid.blocks, kMaxThreads}, stream, FactoredOp<T>{c, g, m_in, m_out, there, d},
         tiles, scratch.ticket(), scratch.parts<double>(), clip);
  run_row_pass("factored_adam_direction", ClipOp<T>{c, m_out, there, d, clip}, g.rows, g.cols,
               stream);
}

template void factored_adam_direction(MatrixView<const float>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<float>, StreamRef);
template void factored_adam_direction(MatrixView<const bf16>, float, MatrixView<const float>,
                                      MatrixView<float>, const FactoredRoots&, const AdamHyper&,
                                      MatrixView<bf16>, StreamRef);

}  // namespace sluiceway::cuda
