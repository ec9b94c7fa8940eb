#include <cublas_v2.h>

#include <cstddef>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/library_turn.cuh"
#include "kernels/cuda/stream_scratch.cuh"

namespace sluiceway::cuda {
namespace {

void check_status(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(concat(call, ": ", cublasGetStatusName(status), " (", static_cast<int>(status),
                         "), expected CUBLAS_STATUS_SUCCESS"));
}

LibraryTurn<cublasHandle_t> turn_on(DeviceId device) {
  return {"gemm", device,
          [](cublasHandle_t* handle) { check_status(cublasCreate(handle), "cublasCreate"); }};
}

// Call after cublasSetStream(), which resets the workspace to the library's own: megabytes that no
// budget counts. The budget does count the stream's scratch, and the kernels of a stream, ours and
// the library's, use it one after another.
void work_on(cublasHandle_t handle, StreamRef stream, const StreamScratch& scratch) {
  static_assert(kTicketBytes % 256 == 0, "the library asks for workspaces that are so aligned");
  check_status(cublasSetStream(handle, static_cast<cudaStream_t>(stream.native())),
               "cublasSetStream");
  check_status(
      cublasSetWorkspace(handle, scratch.parts<std::byte>(), StreamScratch::capacity<std::byte>()),
      "cublasSetWorkspace");
}

}  // namespace

void prepare_gemm(DeviceId device) { turn_on(device); }

// cuBLAS is column-major and sees a row-major matrix as its transpose: c^T = op(b)^T op(a)^T.
void gemm(float alpha, const Factor& a, const Factor& b, float beta, MatrixView<float> c,
          StreamRef stream) {
  check_gemm(a, b, c);
  if (c.elems() == 0) return;
  const auto operation = [](const Factor& f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const StreamScratch scratch(stream);
  const auto turn = turn_on(stream.device());
  work_on(turn.handle(), stream, scratch);
  check_status(
      cublasSgemm_64(turn.handle(), operation(b), operation(a), c.cols, c.rows, a.cols(), &alpha,
                     b.x.data, b.x.stride, a.x.data, a.x.stride, &beta, c.data, c.stride),
      "cublasSgemm_64");
}

}  // namespace sluiceway::cuda
