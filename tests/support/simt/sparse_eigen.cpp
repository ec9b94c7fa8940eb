// kernels/cuda/sparse_product.h on this machine.
#include <Eigen/SparseCore>
#include <string>

#include "kernels/cuda/error_text.cuh"
#include "kernels/cuda/sparse_product.h"
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
using Sparse = Eigen::SparseMatrix<float, Eigen::RowMajor, std::int32_t>;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <typename T>
T* on_host(T* data) {
  return reinterpret_cast<T*>(Arena::host_view(data));
}

template <typename Plain, typename T>
Eigen::Map<Plain, 0, Eigen::OuterStride<>> map(MatrixView<T> x) {
  return {on_host(x.data), x.rows, x.cols, Eigen::OuterStride<>(x.stride)};
}

template <typename T>
bool use_row(simt::Running& running, const T* row, std::int64_t elems, Use use) {
  return simt::use_bytes(running, "sparse_product", row,
                         static_cast<std::size_t>(elems) * sizeof(T), use);
}

template <typename T>
bool use_rows(simt::Running& running, MatrixView<T> x, Use use) {
  for (std::int64_t i = 0; i < x.rows; ++i) {
    if (!use_row(running, x.row(i), x.cols, use)) return false;
  }
  return true;
}

// Entry by entry: the library's matrices must be sorted, ours need not be.
Sparse values(const SparseMatrix& a) {
  std::vector<Eigen::Triplet<float, std::int32_t>> entries;
  const auto *offset = on_host(a.offset), *column = on_host(a.column);
  const float* const value = on_host(a.value);
  for (std::int32_t i = 0; i < a.rows; ++i) {
    for (std::int32_t e = offset[i]; e < offset[i + 1]; ++e) {
      entries.emplace_back(i, column[e], value[e]);
    }
  }
  Sparse out(a.rows, a.cols);
  out.setFromTriplets(entries.begin(), entries.end());
  return out;
}

}  // namespace

void prepare_sparse_product(DeviceId) {
  const cudaError_t refusal = simt::refused("cusparseCreate");
  if (refusal != cudaSuccess) throw CudaError(error_text(refusal, "cusparseCreate"));
  simt::DriverTurn("cusparseCreate").wait_until_idle();
}

void sparse_product(float alpha, const SparseMatrix& a, SparseForm form, MatrixView<const float> b,
                    float beta, MatrixView<float> c, SumOrder, StreamRef stream) {
  check_sparse_product(a, form, b, c);
  if (c.elems() == 0) return;
  const cudaError_t failed = simt::device_error();
  if (failed != cudaSuccess) throw CudaError(error_text(failed, "sparse_product"));
  const cudaError_t refusal = simt::refused("cusparseSpMM");
  if (refusal != cudaSuccess) throw CudaError(error_text(refusal, "cusparseSpMM"));
  const auto work = [=](simt::Running& running, simt::Workshop&) {
    const bool allowed =
        use_row(running, a.offset, a.rows + 1, Use::kRead) &&
        use_row(running, a.column, a.nonzeros, Use::kRead) &&
        use_row(running, a.value, a.nonzeros, Use::kRead) && use_rows(running, b, Use::kRead) &&
        (beta == 0.0F || use_rows(running, c, Use::kRead)) && use_rows(running, c, Use::kWritten);
    if (!allowed) return;
    const Sparse left = values(a);
    const auto right = map<const Rows>(b);
    auto sum = map<Rows>(c);
    Rows product;
    if (form == SparseForm::kPlain) {
      product = alpha * (left * right);
    } else {
      product = alpha * (right * left.transpose());
    }
    if (beta != 0.0F) product += beta * sum;
    sum = product;
  };
  simt::count("sparse_product");
  simt::Worker& worker = simt::worker_of(static_cast<cudaStream_t>(stream.native()));
  const simt::LaunchTurn turn(
      worker.device(), concat("sparse_product of ", a.rows, "x", a.cols, " and ", b.rows, "x",
                              b.cols, form == SparseForm::kPlain ? "" : " (transposed)"));
  worker.enqueue("sparse_product", work);
}

}  // namespace sluiceway::cuda
