#include <cusparse.h>

#include <cstddef>

#include "kernels/cuda/library_turn.cuh"
#include "kernels/cuda/sparse_product.h"
#include "kernels/cuda/stream_scratch.cuh"

namespace sluiceway::cuda {
namespace {

void check_status(cusparseStatus_t status, const char* call) {
  if (status == CUSPARSE_STATUS_SUCCESS) return;
  throw CudaError(concat(call, ": ", cusparseGetErrorName(status), " (", static_cast<int>(status),
                         "), expected CUSPARSE_STATUS_SUCCESS"));
}

LibraryTurn<cusparseHandle_t> turn_on(DeviceId device) {
  return {"sparse_product", device,
          [](cusparseHandle_t* handle) { check_status(cusparseCreate(handle), "cusparseCreate"); }};
}

// NVIDIA promises equal bits for the third algorithm alone. It calls the second the fastest where b
// and c are row-major, and the first where they are column-major.
cusparseSpMMAlg_t algorithm_of(SparseForm form, SumOrder order) {
  if (order == SumOrder::kFixed) return CUSPARSE_SPMM_CSR_ALG3;
  return form == SparseForm::kPlain ? CUSPARSE_SPMM_CSR_ALG2 : CUSPARSE_SPMM_CSR_ALG1;
}

// The library's description of a matrix; uses host memory only.
class SparseDescription {
 public:
  explicit SparseDescription(const SparseMatrix& a) {
    check_status(cusparseCreateConstCsr(&is_, a.rows, a.cols, a.nonzeros, a.offset, a.column,
                                        a.value, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I,
                                        CUSPARSE_INDEX_BASE_ZERO, CUDA_R_32F),
                 "cusparseCreateConstCsr");
  }
  SparseDescription(const SparseDescription&) = delete;
  SparseDescription& operator=(const SparseDescription&) = delete;
  ~SparseDescription() { cusparseDestroySpMat(is_); }
  cusparseConstSpMatDescr_t get() const noexcept { return is_; }

 private:
  cusparseConstSpMatDescr_t is_ = nullptr;
};

// Describes the matrix as row-major, or its transpose as column-major.
class DenseDescription {
 public:
  DenseDescription(MatrixView<const float> x, SparseForm form) {
    const bool plain = form == SparseForm::kPlain;
    check_status(cusparseCreateDnMat(&is_, plain ? x.rows : x.cols, plain ? x.cols : x.rows,
                                     x.stride, const_cast<float*>(x.data), CUDA_R_32F,
                                     plain ? CUSPARSE_ORDER_ROW : CUSPARSE_ORDER_COL),
                 "cusparseCreateDnMat");
  }
  DenseDescription(const DenseDescription&) = delete;
  DenseDescription& operator=(const DenseDescription&) = delete;
  ~DenseDescription() { cusparseDestroyDnMat(is_); }
  cusparseDnMatDescr_t get() const noexcept { return is_; }

 private:
  cusparseDnMatDescr_t is_ = nullptr;
};

}  // namespace

void prepare_sparse_product(DeviceId device) { turn_on(device); }

void sparse_product(float alpha, const SparseMatrix& a, SparseForm form, MatrixView<const float> b,
                    float beta, MatrixView<float> c, SumOrder order, StreamRef stream) {
  check_sparse_product(a, form, b, c);
  if (c.elems() == 0) return;
  const cusparseSpMMAlg_t algorithm = algorithm_of(form, order);
  const SparseDescription left(a);
  const DenseDescription right(b, form), out(c, form);
  const StreamScratch scratch(stream);
  const auto turn = turn_on(stream.device());
  check_status(cusparseSetStream(turn.handle(), static_cast<cudaStream_t>(stream.native())),
               "cusparseSetStream");
  std::size_t bytes = 0;
  check_status(
      cusparseSpMM_bufferSize(turn.handle(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                              CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, left.get(), right.get(),
                              &beta, out.get(), CUDA_R_32F, algorithm, &bytes),
      "cusparseSpMM_bufferSize");
  if (bytes > StreamScratch::capacity<std::byte>()) {
    throw CudaError(concat("sparse_product: the library asks for ", format_bytes(bytes),
                           " of scratch for ", a.nonzeros, " nonzeros, expected at most ",
                           format_bytes(StreamScratch::capacity<std::byte>())));
  }
  check_status(cusparseSpMM(turn.handle(), CUSPARSE_OPERATION_NON_TRANSPOSE,
                            CUSPARSE_OPERATION_NON_TRANSPOSE, &alpha, left.get(), right.get(),
                            &beta, out.get(), CUDA_R_32F, algorithm, scratch.parts<std::byte>()),
               "cusparseSpMM");
}

}  // namespace sluiceway::cuda
