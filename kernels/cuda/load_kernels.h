// Loads our kernels onto a device before anything runs there.
//
// CUDA loads a kernel at its first launch, and that launch may wait until the device is idle.
// Loading them beforehand keeps such a wait out of a step. launch() (launch.cuh) makes the list: it
// has every kernel that this program can launch.
//
// Thread safety: every call from any thread; a second call waits until the first has loaded.
// Errors:        CudaError, naming the kernel; a later call continues with that kernel. Unavailable
//                for a CUDA device in a build without CUDA.
// Cost:          once a device, one driver call for each kernel; then a lock and a comparison.
#pragma once

#include <cstddef>

#include "kernels/base/device_id.h"

namespace sluiceway::cuda {

// Returns how many kernels this call has loaded: 0 on the host device, and 0 if all were loaded.
std::size_t load_kernels(DeviceId device);

}  // namespace sluiceway::cuda
