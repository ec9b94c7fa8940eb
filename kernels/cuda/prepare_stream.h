// Allocates the memory that kernels of a stream need besides their arguments, so that no later call
// on the stream allocates.
//
// Kernels of a stream share a piece of device memory (stream_scratch.cuh). An unprepared stream
// gets it with the first kernel that needs it. The allocation may wait until the device is idle,
// which a step must not do.
//
// Thread safety: every call from any thread.
// Errors:        OutOfMemory if the device cannot allocate kStreamScratchBytes. InvalidArgument for
//                cudaStreamPerThread. Unavailable for a CUDA stream in a build without CUDA.
#pragma once

#include "kernels/base/stream_ref.h"

namespace sluiceway::cuda {

// Does nothing on the host device, and nothing when called again for a stream.
void prepare_stream(StreamRef stream);

}  // namespace sluiceway::cuda
