// The words that CUDA streams wait for: page-locked memory, and cuStreamWaitValue32 on it.
//
// Errors: Unavailable: the driver is older than CUDA 11.7. A call that waits for the whole device
//         (cudaFree) on the thread that shall raise the word never returns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/device/signal_word.h"

namespace sluiceway::cuda {

SignalWords& page_locked_words();  // take() needs a current device.

// Work that is enqueued on `stream` later starts when `word` is 1.
void hold_for(std::uint32_t* word, cudaStream_t stream);

}  // namespace sluiceway::cuda
