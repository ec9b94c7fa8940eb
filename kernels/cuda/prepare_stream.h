// Makes what kernels of a stream need beside their arguments, so that no call on it allocates.
//
// Kernels of a stream share a piece of device memory (stream_scratch.cuh). A stream that was not
// prepared gets it with the first kernel that wants it; to allocate may wait until the device is
// idle, which a step must not.
//
// Thread safety: every call from any thread.
// Errors:        OutOfMemory: the device refuses kStreamScratchBytes. InvalidArgument: the stream
//                is cudaStreamPerThread. Unavailable: a CUDA stream, in a build without CUDA.
#pragma once

#include "kernels/base/stream_ref.h"

namespace sluiceway::cuda {

// Does nothing for the host device, and nothing the second time.
void prepare_stream(StreamRef stream);

}  // namespace sluiceway::cuda
