#include <cuda_runtime.h>
#include <cusparse.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sparse_product.h"

namespace sluiceway::cuda {
namespace {

// Those that NVIDIA names as the fastest where b and c lie by row, and by column.
cusparseSpMMAlg_t algorithm_of(SparseProduct::Form form) {
  return form == SparseProduct::Form::kPlain ? CUSPARSE_SPMM_CSR_ALG2 : CUSPARSE_SPMM_CSR_ALG1;
}

void check_status(cusparseStatus_t status, const char* call) {
  if (status == CUSPARSE_STATUS_SUCCESS) return;
  throw CudaError(concat(call, ": ", cusparseGetErrorName(status), " (", static_cast<int>(status),
                         "), expected CUSPARSE_STATUS_SUCCESS"));
}

// Row-major, or its transpose: the same elements by column.
cusparseDnMatDescr_t describe(MatrixView<const float> x, SparseProduct::Form form) {
  const bool plain = form == SparseProduct::Form::kPlain;
  cusparseDnMatDescr_t described = nullptr;
  check_status(cusparseCreateDnMat(&described, plain ? x.rows : x.cols, plain ? x.cols : x.rows,
                                   x.stride, const_cast<float*>(x.data), CUDA_R_32F,
                                   plain ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL),
               "cusparseCreateDnMat");
  return described;
}

}  // namespace

struct SparseProduct::State {
  StreamRef stream;
  cusparseSpMMAlg_t algorithm;
  cusparseHandle_t handle = nullptr;
  cusparseSpMatDescr_t a = nullptr;
  cusparseDnMatDescr_t b = nullptr, c = nullptr;
  void* workspace = nullptr;

  State(StreamRef of, Form form) : stream(of), algorithm(algorithm_of(form)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const LaunchDevice device("cusparseDestroy", stream.device().ordinal());
    cudaFree(workspace);
    if (c != nullptr) cusparseDestroyDnMat(c);
    if (b != nullptr) cusparseDestroyDnMat(b);
    if (a != nullptr) cusparseDestroySpMat(a);
    if (handle != nullptr) cusparseDestroy(handle);
  }
};

SparseProduct::SparseProduct(const SparseMatrix& a, Form form, MatrixView<const float> b,
                             MatrixView<float> c, StreamRef stream)
    : state_(std::make_unique<State>(stream, form)) {
  check_sparse_product(a, form, b, c);
  State& state = *state_;
  const LaunchDevice device("cusparseSpMM", stream.device().ordinal());
  check_status(cusparseCreate(&state.handle), "cusparseCreate");
  check_status(cusparseSetStream(state.handle, static_cast<cudaStream_t>(stream.native())),
               "cusparseSetStream");
  check_status(cusparseCreateCsr(
                   &state.a, a.rows, a.cols, a.nonzeros, const_cast<std::int32_t*>(a.offset),
                   const_cast<std::int32_t*>(a.column), const_cast<float*>(a.value),
                   CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F),
               "cusparseCreateCsr");
  state.b = describe(b, form);
  state.c = describe(c, form);
  const float alpha = 1.0F, beta = 1.0F;
  std::size_t bytes = 0;
  check_status(cusparseSpMM_bufferSize(state.handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                                       CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, state.a, state.b,
                                       &beta, state.c, CUDA_R_32F, state.algorithm, &bytes),
               "cusparseSpMM_bufferSize");
  if (bytes > 0) check_launch(cudaMalloc(&state.workspace, bytes), "cudaMalloc");
}

SparseProduct::~SparseProduct() = default;

void SparseProduct::run(float alpha, float beta) const {
  const State& state = *state_;
  const LaunchDevice device("cusparseSpMM", state.stream.device().ordinal());
  check_status(cusparseSpMM(state.handle, CUSPARSE_OPERATION_NON_TRANSPOSE,
                            CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, state.a, state.b, &beta,
                            state.c, CUDA_R_32F, state.algorithm, state.workspace),
               "cusparseSpMM");
}

}  // namespace sluiceway::cuda
