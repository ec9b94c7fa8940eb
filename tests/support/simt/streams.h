// The worker behind a stream's handle, and its device.
#pragma once

#include <cuda_runtime_api.h>

#include "tests/support/simt/worker.h"

namespace sluiceway::simt {

// Also accepts null and cudaStreamPerThread, which lives as long as the calling thread: both mean
// streams of the current device.
Worker& worker_of(cudaStream_t stream);

}  // namespace sluiceway::simt
