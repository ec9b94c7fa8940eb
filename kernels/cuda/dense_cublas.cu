#include <cublas_v2.h>

#include <cstddef>
#include <map>
#include <mutex>

#include "kernels/cuda/dense.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/stream_scratch.cuh"

namespace sluiceway::cuda {
namespace {

void check_status(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(concat(call, ": ", cublasGetStatusName(status), " (", static_cast<int>(status),
                         "), expected CUBLAS_STATUS_SUCCESS"));
}

// One a device, whose use is a turn: a handle serves one thread at a time. It is never destroyed,
// since the driver may be gone when a program's static objects are.
class Turn {
  static_assert(kTicketBytes % 256 == 0, "the library asks for workspaces that are so aligned");

 public:
  explicit Turn(StreamRef stream)
      : device_("gemm", stream.device().ordinal()), scratch_(stream), lock_(mutex()) {
    static auto* const handles = new std::map<int, cublasHandle_t>;
    cublasHandle_t& handle = (*handles)[stream.device().ordinal()];
    if (handle == nullptr) check_status(cublasCreate(&handle), "cublasCreate");
    check_status(cublasSetStream(handle, static_cast<cudaStream_t>(stream.native())),
                 "cublasSetStream");
    // Behind cublasSetStream, which goes back to a workspace of the library's own, megabytes that
    // no budget knows of. The stream's scratch is one that is counted, and kernels of a stream,
    // ours and the library's, use it one after another.
    check_status(cublasSetWorkspace(handle, scratch_.parts<std::byte>(),
                                    StreamScratch::capacity<std::byte>()),
                 "cublasSetWorkspace");
    handle_ = handle;
  }
  cublasHandle_t handle() const noexcept { return handle_; }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }

  LaunchDevice device_;
  StreamScratch scratch_;  // The workspace, for the kernels of this product.
  std::lock_guard<std::mutex> lock_;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace

// cuBLAS counts by columns, for which a row-major matrix is its transpose: c^T = op(b)^T op(a)^T.
void gemm(float alpha, const Factor& a, const Factor& b, float beta, MatrixView<float> c,
          StreamRef stream) {
  check_gemm(a, b, c);
  if (c.elems() == 0) return;
  const auto operation = [](const Factor& f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const Turn turn(stream);
  check_status(
      cublasSgemm_64(turn.handle(), operation(b), operation(a), c.cols, c.rows, a.cols(), &alpha,
                     b.x.data, b.x.stride, a.x.data, a.x.stride, &beta, c.data, c.stride),
      "cublasSgemm_64");
}

}  // namespace sluiceway::cuda
