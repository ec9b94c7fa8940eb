// Copies and fills of device memory by a stream, deliberately late.
//
// The target of a copy to the host is scribbled over before the copy arrives. A copy from
// page-locked memory checks that its source is the same as when it was enqueued, unless another
// copy to that source was to come first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "tests/support/simt/worker.h"

namespace sluiceway::simt {

cudaError_t enqueue_copy(Worker& worker, void* dst, const void* src, std::size_t bytes,
                         cudaMemcpyKind kind);
cudaError_t enqueue_fill(Worker& worker, void* dst, int value, std::size_t bytes);

}  // namespace sluiceway::simt
