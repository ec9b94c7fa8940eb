// Copies and fills of device memory by a stream, late on purpose.
//
// Before a copy to the host arrives, its target is scribbled over; a copy from page-locked memory
// checks that what it reads is what was there when it was asked for, unless a copy to there was to
// come first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tests/support/simt/worker.h"

namespace sluiceway::simt {

cudaError_t enqueue_copy(Worker& worker, void* dst, const void* src, std::size_t bytes,
                         cudaMemcpyKind kind);
cudaError_t enqueue_fill(Worker& worker, void* dst, int value, std::size_t bytes);

}  // namespace sluiceway::simt
