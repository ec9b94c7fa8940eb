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

struct SparseProduct::State {
  SparseMatrix a;
  Form form;
  MatrixView<const float> b;
  MatrixView<float> c;
  StreamRef stream;
};

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

// Entry by entry: the library's matrices must be in order, and ours need not be.
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

SparseProduct::SparseProduct(const SparseMatrix& a, Form form, MatrixView<const float> b,
                             MatrixView<float> c, StreamRef stream)
    : state_(std::make_unique<State>(State{a, form, b, c, stream})) {
  check_sparse_product(a, form, b, c);
}

SparseProduct::~SparseProduct() = default;

void SparseProduct::run(float alpha, float beta) const {
  const auto work = [=, of = *state_](simt::Running& running, simt::Workshop&) {
    const bool allowed = use_row(running, of.a.offset, of.a.rows + 1, Use::kRead) &&
                         use_row(running, of.a.column, of.a.nonzeros, Use::kRead) &&
                         use_row(running, of.a.value, of.a.nonzeros, Use::kRead) &&
                         use_rows(running, of.b, Use::kRead) &&
                         (beta == 0.0F || use_rows(running, of.c, Use::kRead)) &&
                         use_rows(running, of.c, Use::kWritten);
    if (!allowed) return;
    const Sparse a = values(of.a);
    const auto b = map<const Rows>(of.b);
    auto c = map<Rows>(of.c);
    Rows product;
    if (of.form == Form::kPlain) {
      product = alpha * (a * b);
    } else {
      product = alpha * (b * a.transpose());
    }
    if (beta != 0.0F) product += beta * c;
    c = product;
  };
  simt::count("sparse_product");
  simt::Worker& worker = simt::worker_of(static_cast<cudaStream_t>(state_->stream.native()));
  const simt::LaunchTurn turn(
      worker.device(),
      concat("sparse_product of ", state_->a.rows, "x", state_->a.cols, " and ", state_->b.rows,
             "x", state_->b.cols, state_->form == Form::kPlain ? "" : " (transposed)"));
  const cudaError_t failed = simt::device_error();
  if (failed != cudaSuccess) throw CudaError(error_text(failed, "sparse_product"));
  worker.enqueue("sparse_product", work);
}

}  // namespace sluiceway::cuda
