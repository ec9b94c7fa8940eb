// Device memory through which the kernels of one stream pass data to each other alone, such as the
// parts of a grid's result before they are joined.
//
//   const StreamScratch scratch(stream);  // Holds the scratch until the launches are enqueued.
//   launch("sum", Kernel<sum>(), shape, stream, scratch.ticket(), scratch.parts<double>(), result);
//
// Kernels of one stream run one after another, so one piece a stream is enough, and kernels of
// different streams never share one. A stream gets its piece with its first call, and no later call
// allocates. Whoever destroys a stream returns its piece, and the next new stream gets it: to free
// it could wait until the device is idle. Nothing tells us when a stream of the framework ends, so
// its piece stays until the process ends, as a vendor library's workspace does. The parts do not
// fit into results (a ScanResult has 24 bytes), and streams would share memory of the module. An
// engine reserves scratch in its budget for the few streams that compute (stream_scratch_bytes.h),
// and has it allocated before its first step (prepare_stream.h).
//
// Thread safety: any thread. A second thread that launches on the same stream waits for the first,
//                so that the data between two launches of one operation stays intact.
// Errors:        OutOfMemory if the device cannot allocate kStreamScratchBytes. InvalidArgument for
//                cudaStreamPerThread, which has the same handle on threads with different streams.
#pragma once

#include <cstddef>
#include <mutex>

#include "kernels/base/stream_ref.h"
#include "kernels/cuda/stream_scratch_bytes.h"

namespace sluiceway::cuda {

// At the start of the piece; zero between kernels.
inline constexpr std::size_t kTicketBytes = 256;
inline constexpr std::size_t kStreamPartsBytes = kStreamScratchBytes - kTicketBytes;

class StreamScratch {
 public:
  explicit StreamScratch(StreamRef stream);

  // Returns a stream's piece. Call it when you destroy a stream, after its last kernel has run.
  // Does nothing for a stream without a piece.
  static void give_back(StreamRef stream) noexcept;

  unsigned* ticket() const noexcept { return reinterpret_cast<unsigned*>(bytes_); }

  template <typename T>
  T* parts() const noexcept {
    return reinterpret_cast<T*>(bytes_ + kTicketBytes);
  }
  template <typename T>
  static constexpr std::size_t capacity() noexcept {
    return kStreamPartsBytes / sizeof(T);
  }

 private:
  struct Piece;
  class Pieces;

  std::unique_lock<std::mutex> lock_;
  std::byte* bytes_ = nullptr;
};

}  // namespace sluiceway::cuda
