// Loads our kernels onto a device before anything runs there.
//
// CUDA loads a kernel with its first launch, and that launch may wait until the device is idle. A
// device that is loaded beforehand has no such launch in the middle of a step. The list is made by
// launch() (launch.cuh): every kernel that this program can launch is on it.
//
// Thread safety: every call from any thread; a second one waits until the first has loaded.
// Errors:        CudaError, naming the kernel; a later call goes on with that kernel. Unavailable:
//                a CUDA device, in a build without CUDA.
// Cost:          once a device, a call of the driver for each kernel; then a lock and a comparison.
#pragma once

#include <cstddef>

#include "kernels/base/device_id.h"

namespace sluiceway::cuda {

// Returns how many kernels this call has loaded: none on the host device, and none where all are
// there already.
std::size_t load_kernels(DeviceId device);

}  // namespace sluiceway::cuda
