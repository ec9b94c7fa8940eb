#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/cuda/weight_sink.cuh"
#include "kernels/projector_shapes.h"
#include "kernels/residual.h"

namespace sluiceway::cuda {
namespace {

// ---- What an update goes along -----------------------------------------------------------------

struct Normalized {  // U = R / roots
  const float *row_roots, *col_roots;
  float eps;

  static Normalized by(const FactoredRoots& roots) {
    return {roots.row.data(), roots.col.data(), roots.eps};
  }
  // x becomes U; its first `count` elements count.
  __device__ void apply(std::int64_t row, std::int64_t col, int count, float (&x)[kOctet]) const {
    float roots[kOctet];
    load_values(col_roots + col, count, roots);
    const float row_root = count > 0 ? __ldg(row_roots + row) : 0.0F;
#pragma unroll
    for (int k = 0; k < kOctet; ++k) x[k] = __fdiv_rn(x[k], fmaf(row_root, roots[k], eps));
  }
};

struct Signs {  // U = sign(R); 0 stays 0 and a NaN a NaN.
  __device__ void apply(std::int64_t, std::int64_t, int, float (&x)[kOctet]) const {
#pragma unroll
    for (int k = 0; k < kOctet; ++k) x[k] = x[k] > 0.0F ? 1.0F : x[k] < 0.0F ? -1.0F : x[k];
  }
};

// Reads r once, reads and writes w (and low) once; roots come from the caches. 5 flop an element.
// Loads do not wait for the verdict; what it refuses is rare, and read in vain.
template <typename R, class Direction, class Sink>
struct UpdateOp {
  MatrixView<const R> r;
  Direction direction;
  Sink sink;
  const ResidualVerdict* verdict;
  bool trains = false;

  __device__ void begin() {
    trains = verdict->trains;
    sink.blend.alpha = verdict->alpha;
  }
  __device__ void take(std::int64_t row, std::int64_t col, int count) const {
    typename Sink::Old old[1];
    sink.load(row, 1, col, count, old);
    float x[kOctet];
    load_values(r.row(row) + col, count, x);
    direction.apply(row, col, count, x);
    if (trains) sink.take(row, col, count, old[0], x);
  }
};

template <class Direction>
void update_along(const char* name, const AnyMatrix& w, MatrixView<std::uint16_t> low,
                  const AnyMatrix& r, const Direction& direction, const WeightUpdate& update,
                  const ResidualVerdict* verdict, StreamRef stream) {
  with_sink(w, low, update, [&](auto sink) {
    with_elements(r, [&]<typename R>(MatrixView<const R> view) {
      const UpdateOp<R, Direction, decltype(sink)> op{view, direction, sink, verdict};
      run_row_pass(name, op, w.rows, w.cols, stream);
    });
  });
}

// ---- The root of the mean square of U ----------------------------------------------------------

template <typename R>
struct SquaresOp {
  MatrixView<const R> r;
  Normalized normalized;
  double sum = 0.0;

  __device__ void take(std::int64_t row, std::int64_t col, int count) {
    float x[kOctet], squares = 0.0F;
    load_values(r.row(row) + col, count, x);
    normalized.apply(row, col, count, x);
#pragma unroll
    for (int k = 0; k < kOctet; ++k) squares = k < count ? fmaf(x[k], x[k], squares) : squares;
    sum += static_cast<double>(squares);
  }
};

// Sums eight squares in f32 and the rest in double; parts of blocks as reduce.cuh says. Loads as
// row_pass() has them. Roof: m n sizeof(R) bytes; 5 flop an element.
template <typename R>
__global__ void root_mean_square(SquaresOp<R> op, RowTiles tiles, unsigned* ticket, double* parts,
                                 double lr, double max_rms, ResidualVerdict* verdict) {
  if (!verdict->trains) return;
  for_row_tiles(tiles, op);
  const double mine[] = {op.sum};
  double sum[1];
  if (!sum_of_grid(mine, ticket, parts, sum)) return;
  const auto elems = static_cast<double>(tiles.rows * tiles.cols);
  verdict->rms = elems == 0.0 ? 0.0 : sqrt(sum[0] / elems);
  verdict->alpha = clipped_alpha(lr, verdict->rms, max_rms);
}

}  // namespace

void residual_clip(ResidualVerdict* verdict, const AnyMatrix& r, const FactoredRoots& roots,
                   double lr, double max_rms, StreamRef stream) {
  check_roots("residual_clip", roots, r.rows, r.cols);
  const StreamScratch scratch(stream);
  const RowTiles tiles = RowTiles::of(r.rows, r.cols, kSumLimits);
  with_elements(r, [&]<typename R>(MatrixView<const R> view) {
    launch("residual_clip", Kernel<root_mean_square<R>>(), {tiles.grid.blocks, kMaxThreads}, stream,
           SquaresOp<R>{view, Normalized::by(roots)}, tiles, scratch.ticket(),
           scratch.parts<double>(), lr, max_rms, verdict);
  });
}

void residual_apply(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                    const FactoredRoots& roots, const WeightUpdate& update,
                    const ResidualVerdict* verdict, StreamRef stream) {
  check_roots("residual_apply", roots, r.rows, r.cols);
  check_weight("residual_apply", w, low, update, r.rows, r.cols);
  update_along("residual_apply", w, low, r, Normalized::by(roots), update, verdict, stream);
}

void residual_sign(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& r,
                   const WeightUpdate& update, const ResidualVerdict* verdict, StreamRef stream) {
  check_weight("residual_sign", w, low, update, r.rows, r.cols);
  update_along("residual_sign", w, low, r, Signs{}, update, verdict, stream);
}

}  // namespace sluiceway::cuda
