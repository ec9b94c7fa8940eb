// Rejects cudaStreamPerThread for calls that keep something for a stream or let another wait for
// it.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"

namespace sluiceway::cuda {

// Throws InvalidArgument, whose text starts with `what`.
inline void check_one_stream(const char* what, StreamRef stream) {
  SLUICEWAY_CHECK(
      stream.native() != cudaStreamPerThread, what,
      ": cudaStreamPerThread is a different stream on every thread; pass the handle of a "
      "stream that you created");
}

}  // namespace sluiceway::cuda
