// The worker behind a stream's handle, and the device it belongs to.
#pragma once

#include <cuda_runtime_api.h>

#include "tests/support/simt/worker.h"

namespace sluiceway::simt {

// Of null too, and of cudaStreamPerThread, which lives as long as the calling thread: both are
// those of the current device.
Worker& worker_of(cudaStream_t stream);

}  // namespace sluiceway::simt
