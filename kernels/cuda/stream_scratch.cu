#include <cuda_runtime.h>

#include <list>
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

// The pieces of all devices: those of live streams, by handle, and those of streams that ended.
class StreamScratch::Pieces {
 public:
  static Pieces& of_process() {
    // Never destroyed: streams may end after every static object.
    static Pieces* const all = new Pieces;
    return *all;
  }

  Piece& of(StreamRef stream) {
    const int ordinal = stream.device().ordinal();
    const std::lock_guard lock(mutex_);
    std::list<Piece>& ended = ended_[ordinal];
    std::list<Piece>& own = live_[{ordinal, stream.native()}];
    if (!own.empty()) return own.front();
    if (ended.empty()) return own.emplace_back();
    own.splice(own.begin(), ended, ended.begin());
    return own.front();
  }

  // Nodes move from list to list, so nothing is allocated.
  void give_back(StreamRef stream) noexcept {
    const int ordinal = stream.device().ordinal();
    const std::lock_guard lock(mutex_);
    const auto found = live_.find({ordinal, stream.native()});
    if (found == live_.end()) return;
    std::list<Piece>& ended = ended_.find(ordinal)->second;
    ended.splice(ended.begin(), found->second);
    live_.erase(found);
  }

 private:
  std::mutex mutex_;
  // live_: by ordinal and handle, a list of one piece or none. ended_: by ordinal, last returned
  // first.
  std::map<std::pair<int, void*>, std::list<Piece>> live_;
  std::map<int, std::list<Piece>> ended_;
};

StreamScratch::StreamScratch(StreamRef stream) {
  check_one_stream("stream scratch", stream);
  Piece& piece = Pieces::of_process().of(stream);
  lock_ = std::unique_lock(piece.mutex);
  if (piece.bytes == nullptr) {
    const LaunchDevice device("cudaMalloc", stream.device().ordinal());
    void* bytes = nullptr;
    const cudaError_t allocated = cudaMalloc(&bytes, kStreamScratchBytes);
    if (allocated == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw OutOfMemory(concat("stream scratch: ", to_string(stream.device()),
                               " could not allocate ", format_bytes(kStreamScratchBytes),
                               "; lower the budget"));
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

void StreamScratch::give_back(StreamRef stream) noexcept { Pieces::of_process().give_back(stream); }

void prepare_stream(StreamRef stream) {
  if (!stream.is_host()) const StreamScratch made(stream);
}

}  // namespace sluiceway::cuda
