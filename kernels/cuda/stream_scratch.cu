#include <cuda_runtime.h>

#include <map>
#include <utility>
#include <vector>

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

// Of every device: the pieces of its streams, by handle, and those of streams that ended.
class StreamScratch::Pieces {
 public:
  static Pieces& of_process() {
    static Pieces* const all = new Pieces;  // Streams may end after every static object.
    return *all;
  }

  Piece& of(StreamRef stream) {
    const std::lock_guard lock(mutex_);
    return pieces_[{stream.device().ordinal(), stream.native()}];
  }

  std::byte* take(StreamRef stream) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<std::byte*>& free = free_[stream.device().ordinal()];
      if (!free.empty()) {
        std::byte* const bytes = free.back();
        free.pop_back();
        return bytes;
      }
    }
    std::byte* const bytes = allocate(stream);
    const std::lock_guard lock(mutex_);
    const int ordinal = stream.device().ordinal();
    free_[ordinal].reserve(++made_[ordinal]);  // So that give_back() never allocates.
    return bytes;
  }

  void give_back(StreamRef stream) noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = pieces_.find({stream.device().ordinal(), stream.native()});
    if (found == pieces_.end()) return;
    if (found->second.bytes != nullptr) {
      free_.find(stream.device().ordinal())->second.push_back(found->second.bytes);
    }
    pieces_.erase(found);
  }

 private:
  static std::byte* allocate(StreamRef stream) {
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
    return static_cast<std::byte*>(bytes);
  }

  std::mutex mutex_;
  std::map<std::pair<int, void*>, Piece> pieces_;
  std::map<int, std::vector<std::byte*>> free_;  // By ordinal.
  std::map<int, std::size_t> made_;
};

StreamScratch::StreamScratch(StreamRef stream) {
  check_one_stream("stream scratch", stream);
  Piece& piece = Pieces::of_process().of(stream);
  lock_ = std::unique_lock(piece.mutex);
  if (piece.bytes == nullptr) piece.bytes = Pieces::of_process().take(stream);
  bytes_ = piece.bytes;
}

void StreamScratch::give_back(StreamRef stream) noexcept { Pieces::of_process().give_back(stream); }

void prepare_stream(StreamRef stream) {
  if (!stream.is_host()) const StreamScratch made(stream);
}

}  // namespace sluiceway::cuda
