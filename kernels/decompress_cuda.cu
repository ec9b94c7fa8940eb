#include <algorithm>

#include "kernels/compress.h"
#include "kernels/cuda/expand_blocks.cuh"
#include "kernels/cuda/expand_sparse.cuh"
#include "kernels/cuda/one_group.h"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/cuda/weight_sink.cuh"
#include "kernels/decompress.h"
#include "kernels/projector_checks.h"

namespace sluiceway::cuda {
namespace {

// Reads d once; reads and writes the rows of w from `first` on once.
template <typename D, class Sink>
struct IdentityOp {
  MatrixView<const D> d;
  Sink sink;
  std::int64_t first = 0;

  __device__ void take(std::int64_t row, std::int64_t col, int count) const {
    typename Sink::Old old[1];
    sink.load(first + row, 1, col, count, old);
    float x[kOctet];
    load_values(d.row(row) + col, count, x);
    sink.take(first + row, col, count, old[0], x);
  }
};

// P (D Q^T) by two dense products: D is first widened to f32, and then as many rows are computed at
// a time as fit into the scratch: at least 64, and dm + dn for a square W. Roof: 2 m n dm + 2 n dm
// dn flop; the sink's bytes, and 8 m n for rows of the product, written and read.
template <class Sink>
void decompress_dense(const Sink& sink, const AnyMatrix& d, const BlockRows& p, const BlockRows& q,
                      std::span<float> scratch, StreamRef stream) {
  ScratchCutter cut(scratch);
  MatrixView<const float> core = d.as<const float>();
  if (d.dtype != DType::kF32) {
    const MatrixView<float> wide(cut.take(d.rows * d.cols), d.rows, d.cols);
    cuda::compress(wide, 0.0F, d, stream);
    core = wide;
  }
  const MatrixView<float> right(cut.take(d.rows * q.rows), d.rows, q.rows);
  gemm(1.0F, {core}, dense_factor(q, true), 0.0F, right, stream);
  const auto room = static_cast<std::int64_t>(cut.rest().size()) / q.rows;
  for (std::int64_t first = 0; first < p.rows; first += room) {
    const std::int64_t rows = std::min(room, p.rows - first);
    const MatrixView<float> expanded(cut.rest().data(), rows, q.rows);
    gemm(1.0F, dense_factor(p, first, rows), {right}, 0.0F, expanded, stream);
    const IdentityOp<float, Sink> op{expanded, sink, first};
    run_row_pass("decompress", op, rows, q.rows, stream);
  }
}

}  // namespace

// The intermediate product is in shared memory. Only dense groups use scratch.
void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const SparseRows& p, const SparseRows& q, const WeightUpdate& update,
                std::span<float> scratch, StreamRef stream) {
  check_decompress(w, low, d, p, q, update, scratch);
  with_sink(w, low, update, [&](auto sink) {
    run_expand_sparse("decompress", d, p, q, sink, GridLimits(), stream);
  });
}

void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const BlockRows& p, const BlockRows& q, const WeightUpdate& update,
                std::span<float> scratch, StreamRef stream) {
  check_decompress(w, low, d, p, q, update, scratch);
  with_sink(w, low, update, [&](auto sink) {
    if (is_dense(p) && is_dense(q)) return decompress_dense(sink, d, p, q, scratch, stream);
    with_elements(d, [&](auto view) {
      run_expand_blocks("decompress", view, p, q, sink, GridLimits(), stream);
    });
  });
}

void decompress(const AnyMatrix& w, MatrixView<std::uint16_t> low, const AnyMatrix& d,
                const WeightUpdate& update, StreamRef stream) {
  check_decompress(w, low, d, update);
  with_sink(w, low, update, [&](auto sink) {
    with_elements(d, [&]<typename D>(MatrixView<const D> view) {
      run_row_pass("decompress", IdentityOp<D, decltype(sink)>{view, sink}, w.rows, w.cols, stream);
    });
  });
}

}  // namespace sluiceway::cuda
