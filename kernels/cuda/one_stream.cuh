// Refuses cudaStreamPerThread, where something is kept for a stream or waits for it elsewhere.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/base/check.h"
#include "kernels/base/stream_ref.h"

namespace sluiceway::cuda {

// InvalidArgument, with `what` in front.
inline void check_one_stream(const char* what, StreamRef stream) {
  SLUICEWAY_CHECK(stream.native() != cudaStreamPerThread, what,
                  ": cudaStreamPerThread is another stream on every thread, expected the handle of "
                  "one stream; create one");
}

}  // namespace sluiceway::cuda
