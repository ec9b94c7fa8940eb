// The device that is current on the calling thread, and what is wrong under another than its own.
#pragma once

#include <cuda_runtime_api.h>

namespace sluiceway::simt {

// A thread starts with the last device, where CUDA has the first: code that names the device it
// means works with either, and code that forgets to shows at once.
int current_device() noexcept;
bool set_current_device(int device) noexcept;  // False: there is none of this number.

// A finding, and what `call` returns, where `what` ("a stream") belongs to a device that is not
// current; else success.
cudaError_t expect_current(const char* call, const char* what, int device);

}  // namespace sluiceway::simt
