// The calling thread's current device, and errors that come from using another one.
#pragma once

#include <cuda_runtime_api.h>

namespace sluiceway::simt {

// A thread starts with the last device, where CUDA has the first: code that names its device works
// with either, and code that forgets to fails at once.
int current_device() noexcept;
bool set_current_device(int device) noexcept;  // False: no device has this number.

// If `what` ("a stream") belongs to a device that is not current, reports a finding and returns the
// error for `call`; otherwise returns success.
cudaError_t expect_current(const char* call, const char* what, int device);

}  // namespace sluiceway::simt
