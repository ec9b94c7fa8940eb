#include "kernels/bias_norm.h"
#include "kernels/cuda/expand_blocks.cuh"
#include "kernels/cuda/expand_sparse.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/stream_scratch.cuh"
#include "kernels/projector_checks.h"

namespace sluiceway::cuda {
namespace {

// Compares octets of P S Q^T with octets of G, and sums both squares in double. Reads G once and
// stores neither matrix; reduce.cuh explains how the parts of blocks are joined. On cards with slow
// double precision that is the roof: 4 flop an element.
template <typename T>
struct BiasSink {
  using Old = Octet<T>;
  MatrixView<const T> g;
  unsigned* ticket;
  BiasNorm* parts;
  BiasNorm* result;
  double bias_sq = 0.0, grad_sq = 0.0;

  template <int kRows>
  __device__ void load(std::int64_t row, std::int64_t rows, std::int64_t col, int count,
                       Old (&old)[kRows]) const {
    load_octets(g.row(row) + col, g.stride, rows, count, old);
  }

  __device__ void take(std::int64_t, std::int64_t, int count, const Old& gradient,
                       const float (&x)[kOctet]) {
#pragma unroll
    for (int k = 0; k < kOctet; ++k) {
      if (k >= count) continue;
      const float value = value_of(gradient, k);
      const auto bias = static_cast<double>(x[k] - value), grad = static_cast<double>(value);
      bias_sq += bias * bias;
      grad_sq += grad * grad;
    }
  }

  __device__ void finish() const {
    join(bias_sq, grad_sq, parts + blockIdx.x);
    if (!is_last_block(ticket)) return;
    double bias = 0.0, grad = 0.0;
    for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
      bias += parts[i].bias_sq;
      grad += parts[i].grad_sq;
    }
    join(bias, grad, result);
  }

 private:
  __device__ static void join(double bias, double grad, BiasNorm* out) {
    bias = block_sum(bias);
    grad = block_sum(grad);
    if (threadIdx.x != 0) return;
    out->bias_sq = bias;
    out->grad_sq = grad;
  }
};

constexpr GridLimits kBiasLimits{1, 4096};  // The same on every device, so that the bits are equal.

// The core lies at the start of the caller's scratch; run(sink, core) expands it.
template <class Run>
void compare(BiasNorm* result, const AnyMatrix& g, StreamRef stream, const Run& run) {
  const StreamScratch scratch(stream);
  with_elements(g, [&]<typename T>(MatrixView<const T> view) {
    run(BiasSink<T>{view, scratch.ticket(), scratch.parts<BiasNorm>(), result});
  });
}

}  // namespace

void bias_norm(BiasNorm* result, const AnyMatrix& g, const SparseRows& p, const SparseRows& q,
               const SparseColumns& q_columns, std::span<float> scratch, StreamRef stream) {
  check_bias(g, p, q, q_columns, scratch);
  ScratchCutter cut(scratch);
  float* const core = cut.take(p.cols * q.cols);
  cuda::compress({core, p.cols, q.cols}, 0.0F, g, p, q_columns, cut.rest(), stream);
  compare(result, g, stream, [&](const auto& sink) {
    run_expand_sparse("bias_norm", {core, p.cols, q.cols, q.cols, DType::kF32}, p, q, sink,
                      kBiasLimits, stream);
  });
}

void bias_norm(BiasNorm* result, const AnyMatrix& g, const BlockRows& p, const BlockRows& q,
               std::span<float> scratch, StreamRef stream) {
  check_bias(g, p, q, scratch);
  ScratchCutter cut(scratch);
  float* const core = cut.take(p.cols * q.cols);
  cuda::compress({core, p.cols, q.cols}, 0.0F, g, p, q, cut.rest(), stream);
  compare(result, g, stream, [&](const auto& sink) {
    run_expand_blocks("bias_norm", MatrixView<const float>(core, p.cols, q.cols), p, q, sink,
                      kBiasLimits, stream);
  });
}

}  // namespace sluiceway::cuda
