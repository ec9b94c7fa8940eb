// Device memory for what kernels of one stream hand to each other and to nobody else: the parts of
// a grid's result before they are one.
//
//   const StreamScratch scratch(stream);  // Holds the scratch until the launches are enqueued.
//   launch("sum", Kernel<sum>(), shape, stream, scratch.ticket(), scratch.parts<double>(), result);
//
// Kernels of one stream run one after another, so one piece a stream is enough, and kernels of
// different streams never share one. A stream gets its piece with its first call, and no later call
// allocates. Whoever destroys a stream gives its piece back, and the next new stream gets that one:
// to free it could wait until the device is idle. A stream of the framework is not known to end, so
// its piece stays until the process ends, as a vendor library's workspace does. Results
// have no room for it (a ScanResult has 24 bytes), and memory of the module would be shared by
// streams. An engine reserves it in its budget, for the few streams that compute
// (stream_scratch_bytes.h), and has it made before its first step (prepare_stream.h).
//
// Thread safety: any thread; a second one that launches on the same stream waits for the first, so
//                that what is between two launches of one operation stays there.
// Errors:        OutOfMemory: the device refuses kStreamScratchBytes. InvalidArgument: the stream
//                is cudaStreamPerThread, whose handle is the same on threads whose streams are not.
#pragma once

#include <cstddef>
#include <mutex>

#include "kernels/base/stream_ref.h"
#include "kernels/cuda/stream_scratch_bytes.h"

namespace sluiceway::cuda {

inline constexpr std::size_t kTicketBytes = 256;  // In front; zero between kernels.
inline constexpr std::size_t kStreamPartsBytes = kStreamScratchBytes - kTicketBytes;

class StreamScratch {
 public:
  explicit StreamScratch(StreamRef stream);

  // For who destroys the stream, after its last kernel has run. Nothing where it has no piece.
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
