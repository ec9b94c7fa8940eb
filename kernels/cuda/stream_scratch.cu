#include <cuda_runtime.h>

#include <map>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/one_stream.cuh"
#include "kernels/cuda/prepare_stream.h"
#include "kernels/cuda/stream_scratch.cuh"

namespace sluiceway::cuda {

struct StreamScratch::Piece {
  std::mutex mutex;
  std::byte* bytes = nullptr;
};

// By handle: a new stream that gets the handle of a destroyed one gets its piece, which is free,
// since the runtime gives a handle away only when its work is done.
StreamScratch::Piece& StreamScratch::piece_of(StreamRef stream) {
  static std::mutex mutex;
  static std::map<std::pair<int, void*>, Piece> pieces;
  const std::lock_guard lock(mutex);
  return pieces[{stream.device().ordinal(), stream.native()}];
}

StreamScratch::StreamScratch(StreamRef stream) {
  check_one_stream("stream scratch", stream);
  Piece& piece = piece_of(stream);
  lock_ = std::unique_lock(piece.mutex);
  if (piece.bytes == nullptr) {
    const LaunchDevice device("cudaMalloc", stream.device().ordinal());
    void* bytes = nullptr;
    const cudaError_t allocated = cudaMalloc(&bytes, kStreamScratchBytes);
    if (allocated == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(concat("stream scratch: ", to_string(stream.device()), " refused ",
                               format_bytes(kStreamScratchBytes), "; lower the budget"));
    }
    check_launch(allocated, "cudaMalloc");
    const cudaError_t zeroed =
        cudaMemsetAsync(bytes, 0, kTicketBytes, static_cast<cudaStream_t>(stream.native()));
    if (zeroed != cudaSuccess) cudaFree(bytes);
    check_launch(zeroed, "cudaMemsetAsync");
    piece.bytes = static_cast<std::byte*>(bytes);
  }
  bytes_ = piece.bytes;
}

void prepare_stream(StreamRef stream) {
  if (!stream.is_host()) const StreamScratch made(stream);
}

}  // namespace sluiceway::cuda
