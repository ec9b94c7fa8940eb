// kernels/cuda/dense.h on this machine.
#include <Eigen/Core>
#include <string>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/error_text.cuh"
#include "tests/support/simt/arena.h"
#include "tests/support/simt/calls.h"
#include "tests/support/simt/device_bytes.h"
#include "tests/support/simt/findings.h"
#include "tests/support/simt/loading.h"
#include "tests/support/simt/streams.h"

namespace sluiceway::cuda {
namespace {

using simt::Arena;
using simt::Use;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename Plain, typename T>
Eigen::Map<Plain, 0, Eigen::OuterStride<>> map(MatrixView<T> x) {
  auto* const first = reinterpret_cast<T*>(Arena::host_view(x.data));
  return {first, x.rows, x.cols, Eigen::OuterStride<>(x.stride)};
}

Rows values(const Factor& factor) {
  const auto x = map<const Rows>(factor.x);
  if (factor.transposed) return x.transpose();
  return x;
}

template <typename T>
bool use_rows(simt::Running& running, const std::string& name, MatrixView<T> x, Use use) {
  for (std::int64_t i = 0; i < x.rows; ++i) {
    const auto bytes = static_cast<std::size_t>(x.cols) * sizeof(T);
    if (!simt::use_bytes(running, name, x.row(i), bytes, use)) return false;
  }
  return true;
}

}  // namespace

void prepare_gemm(DeviceId) {
  const cudaError_t refusal = simt::refused("cublasCreate");
  if (refusal != cudaSuccess) throw CudaError(error_text(refusal, "cublasCreate"));
  simt::DriverTurn("cublasCreate").wait_until_idle();
}

void gemm(float alpha, const Factor& a, const Factor& b, float beta, MatrixView<float> c,
          StreamRef stream) {
  check_gemm(a, b, c);
  if (c.elems() == 0) return;
  const std::string name = "gemm";
  const auto work = [=](simt::Running& running, simt::Workshop&) {
    const bool allowed = use_rows(running, name, a.x, Use::kRead) &&
                         use_rows(running, name, b.x, Use::kRead) &&
                         (beta == 0.0F || use_rows(running, name, c, Use::kRead)) &&
                         use_rows(running, name, c, Use::kWritten);
    if (!allowed) return;
    auto sum = map<Rows>(c);
    const Rows product = alpha * values(a) * values(b);
    if (beta == 0.0F) {
      sum = product;
    } else {
      sum = (beta * sum + product).eval();
    }
  };
  const auto shape_of = [](const Factor& factor) {
    return concat(factor.rows(), "x", factor.cols(), factor.transposed ? " (transposed)" : "");
  };
  simt::count("gemm");
  simt::Worker& worker = simt::worker_of(static_cast<cudaStream_t>(stream.native()));
  const simt::LaunchTurn turn(worker.device(),
                              concat("gemm of ", shape_of(a), " and ", shape_of(b)));
  const cudaError_t failed = simt::device_error();
  if (failed != cudaSuccess) throw CudaError(error_text(failed, "gemm"));
  worker.enqueue(name, work);
}

}  // namespace sluiceway::cuda
